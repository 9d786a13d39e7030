"""A chart as a profile asks for it: what is installed from where, and what of it is not supported (pure)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from unwind.api import durations
from unwind.api.fields import Unknown
from unwind.api.names import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.sveltos import HelmChart

TIMEOUT = 300.0
"""Helm's own: how long any single operation may take."""
# What a profile may leave behind of old revisions; Sveltos' default.
_HISTORY = 2
_TEMPLATE = "{{"
_ARCHIVES = (".tgz", ".tar.gz")


class HelmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Helm goes about it."""

    timeout: float = TIMEOUT
    """Seconds for any single operation."""
    rendering: tuple[str, ...] = ()
    """What is passed on as it is, whenever the chart is looked at."""
    flags: tuple[str, ...] = ()
    """What is passed on as it is, when it is installed or upgraded."""
    create_namespace: bool = True
    hooks: bool = True
    cascade: str = "foreground"
    """How what an object owns goes with it."""
    labels: tuple[tuple[str, str], ...] = ()
    """On the release's Secret."""

    @property
    def uninstalling(self) -> str:
        """What has to be known when it goes, and nobody may be there to ask: fit for a label."""
        return ".".join([f"{self.timeout:.0f}s", "hooks" if self.hooks else "no-hooks", self.cascade])

    @classmethod
    def of_uninstalling(cls, text: str) -> HelmOptions:
        """Read what `uninstalling` wrote; what it did not write is as usual."""
        words = text.split(".")
        if len(words) != 3 or isinstance(timeout := durations.parse(words[0]), Unknown):
            return cls()
        return cls(timeout=timeout.total_seconds(), hooks=words[1] != "no-hooks", cascade=words[2])


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One release of a chart, with everything that goes into it."""

    release: str
    namespace: str
    chart: str
    """Its name in a repository, or where it is: an OCI reference, an archive's URL, a directory."""
    repository: str = ""
    version: str = ""
    values: tuple[str, ...] = ()
    """YAML documents; what comes later wins."""
    options: HelmOptions = HelmOptions()
    order: int = 0
    """Its place among what the profile deploys."""

    @property
    def source(self) -> str:
        """What inventory entries call it."""
        return source(self.namespace, self.release)

    @property
    def inputs(self) -> str:
        """All that it is made of, as a hash that fits a label."""
        fields = (self.chart, self.repository, self.version, self.values, self.options)
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:32]


def source(namespace: str, release: str) -> str:
    """What an inventory's entries call the release that they came from."""
    return f"Helm {namespace}/{release}"


def read(asked: HelmChart, *, values: tuple[str, ...] = (), order: int = 0) -> Chart:
    """The release that a profile asks for. Its fields are supported: `unsupported` said nothing.

    `values`: of valuesFrom. As with Sveltos they come after, and so win over, those that stand in the profile.
    """
    chart, repository = _location(asked)
    inline = (asked.values,) if asked.values.strip() else ()
    return Chart(
        release=asked.release_name,
        namespace=asked.release_namespace,
        chart=chart,
        repository=repository,
        version=asked.chart_version,
        values=inline + values,
        options=options(asked.options),
        order=order,
    )


def unsupported(asked: HelmChart, *, name: str = "helmCharts") -> list[str]:
    """What of it cannot be done, each by the name of its field."""
    found = [
        f"{name}.{field}: templates are not supported"
        for field, text in (
            ("values", asked.values),
            ("repositoryURL", asked.repository_url),
            ("chartName", asked.chart_name),
            ("chartVersion", asked.chart_version),
            ("releaseName", asked.release_name),
            ("releaseNamespace", asked.release_namespace),
            *((f"valuesFrom[{number}].name", one.name) for number, one in enumerate(asked.values_from)),
            *((f"valuesFrom[{number}].namespace", one.namespace) for number, one in enumerate(asked.values_from)),
        )
        if _TEMPLATE in text
    ]
    scheme = urlsplit(asked.repository_url).scheme
    if scheme not in ("http", "https", "oci", "file"):
        found.append(f"{name}.repositoryURL: {scheme or 'a name'} is none of http, https, oci, file")
    for number, one in enumerate(asked.values_from):
        if one.kind not in ("ConfigMap", "Secret"):
            found.append(f"{name}.valuesFrom[{number}].kind: {one.kind!r} is neither ConfigMap nor Secret")
    found += [f"{name}.options.{why}" for why in _refused(asked.options)]
    return found


def _location(asked: HelmChart) -> tuple[str, str]:
    """Which chart, in which repository; no repository where the chart says itself where it is."""
    url, name = asked.repository_url.rstrip("/"), asked.chart_name
    # Sveltos' users write it with the name of the repository in front, as `helm repo add` would have it.
    name = name.removeprefix(f"{asked.repository_name}/") if asked.repository_name else name
    if url.startswith(("oci://", "file://")):
        return (url if not name or url.endswith(f"/{name}") else f"{url}/{name}"), ""
    if url.endswith(_ARCHIVES):
        return url, ""
    return name, url


# Options, by the names that Sveltos gives them.


def options(given: dict[str, Any]) -> HelmOptions:
    """What the options of a chart mean to Helm."""
    said: list[str] = []
    for path, value in _leaves(given):
        know = _KNOWN.get(path)
        said += know(value) if know and value not in (None, False, "", {}) else ()
    install = given.get("installOptions") or {}
    uninstall = given.get("uninstallOptions") or {}
    timeout = durations.parse(str(given.get("timeout") or f"{TIMEOUT:.0f}s"))
    history = (given.get("upgradeOptions") or {}).get("maxHistory", _HISTORY)
    return HelmOptions(
        timeout=TIMEOUT if isinstance(timeout, Unknown) else timeout.total_seconds(),
        rendering=tuple(flag for flag in said if flag in _RENDERING),
        flags=(*(flag for flag in said if flag not in _RENDERING), f"--history-max={history}"),
        create_namespace=install.get("createNamespace", True),
        hooks=not given.get("disableHooks"),
        cascade=uninstall.get("deletionPropagation") or HelmOptions().cascade,
        labels=tuple(sorted((given.get("labels") or {}).items())),
    )


def _refused(given: dict[str, Any]) -> list[str]:
    found = []
    for path, value in _leaves(given):
        if value in (None, False, "", {}, []):
            continue  # as if it were not there: a CRD's defaults are written like that
        if path not in _KNOWN:
            found.append(f"{path}: it is not supported")
        elif (why := _CHECKS.get(path, _fine)(value)) is not None:
            found.append(f"{path}: {why}")
    return found


def _leaves(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """Each option by its path: `upgradeOptions.maxHistory`."""
    found = []
    for key, value in given.items():
        if key.endswith("Options") and isinstance(value, dict):
            found += [(f"{key}.{inner}", one) for inner, one in value.items()]
        else:
            found.append((key, value))
    return found


def _flag(name: str) -> Callable[[Any], list[str]]:
    return lambda _: [f"--{name}"]


def _read_elsewhere(_: Any) -> list[str]:
    return []


_KNOWN: dict[str, Callable[[Any], list[str]]] = {
    "skipCRDs": _flag("skip-crds"),
    "wait": _flag("wait"),
    "waitForJobs": _flag("wait-for-jobs"),
    "timeout": _read_elsewhere,
    "disableHooks": _flag("no-hooks"),
    "disableOpenAPIValidation": _flag("disable-openapi-validation"),
    "skipSchemaValidation": _flag("skip-schema-validation"),
    "atomic": _flag("atomic"),
    "dependencyUpdate": _flag("dependency-update"),
    "labels": _read_elsewhere,
    # How Sveltos keeps its clients: there is nothing of the kind here, and nothing depends on it.
    "enableClientCache": _read_elsewhere,
    "description": lambda text: [f"--description={text}"],
    "installOptions.createNamespace": _read_elsewhere,
    # `helm upgrade --install` does so by itself where a release was uninstalled and its history kept.
    "installOptions.replace": _read_elsewhere,
    "installOptions.disableHooks": _flag("no-hooks"),
    "upgradeOptions.disableHooks": _flag("no-hooks"),
    "upgradeOptions.resetValues": _flag("reset-values"),
    "upgradeOptions.reuseValues": _flag("reuse-values"),
    "upgradeOptions.resetThenReuseValues": _flag("reset-then-reuse-values"),
    "upgradeOptions.maxHistory": _read_elsewhere,
    "upgradeOptions.cleanupOnFail": _flag("cleanup-on-fail"),
    "upgradeOptions.subNotes": _flag("render-subchart-notes"),
    "uninstallOptions.deletionPropagation": _read_elsewhere,
}


# Those that `helm template` knows as well, and that make a difference to what it prints.
_RENDERING = frozenset(
    ["--skip-crds", "--no-hooks", "--disable-openapi-validation", "--skip-schema-validation", "--dependency-update"]
)


def _fine(_: Any) -> None:
    return None


def _span(value: Any) -> str | None:
    return f"{value!r} is no span of time" if isinstance(durations.parse(str(value)), Unknown) else None


def _cascades(value: Any) -> str | None:
    return None if value in ("foreground", "background") else f"{value!r} would leave things behind"


def _own_labels(value: Any) -> str | None:
    ours = [key for key in value if key.startswith(PREFIX)]
    return f"{', '.join(ours)} is not for others to set" if ours else None


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "timeout": _span,
    "uninstallOptions.deletionPropagation": _cascades,
    "labels": _own_labels,
}
