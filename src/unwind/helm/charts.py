"""Reads the helmCharts of a profile: chart, repository, options, values and valuesFrom, what is not supported."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import yaml

from unwind import safe_yaml
from unwind.api import annotation_values
from unwind.api.fields import Unknown
from unwind.api.names import PREFIX, SVELTOS_TEMPLATE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.deleters.outcomes import TransientError
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from unwind.api.sveltos import HelmChart, ValuesFrom
    from unwind.kube.client import Client, Object

TIMEOUT = 300.0
"""Seconds. Helm's default timeout of a single operation."""
# The number of old revisions that are kept; Sveltos' default.
_HISTORY = 2
_TEMPLATE = "{{"
_ARCHIVES = (".tgz", ".tar.gz")


class HelmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of Helm commands."""

    timeout: float = TIMEOUT
    """Seconds for any single operation."""
    rendering: tuple[str, ...] = ()
    """Flags for all commands that render the chart."""
    flags: tuple[str, ...] = ()
    """Flags for install and upgrade."""
    create_namespace: bool = True
    hooks: bool = True
    cascade: str = "foreground"
    """The deletion propagation of an uninstall."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels of the release Secret."""

    @property
    def uninstalling(self) -> str:
        """The options of a later uninstall, as a label value: the profile may not exist then."""
        return ".".join([f"{self.timeout:.0f}s", "hooks" if self.hooks else "no-hooks", self.cascade])

    @classmethod
    def of_uninstalling(cls, text: str) -> HelmOptions:
        """The options from a value of `uninstalling`; defaults if it is invalid."""
        words = text.split(".")
        if len(words) != 3 or isinstance(timeout := annotation_values.parse_duration(words[0]), Unknown):
            return cls()
        return cls(timeout=timeout.total_seconds(), hooks=words[1] != "no-hooks", cascade=words[2])


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """One release of a chart, with all its inputs."""

    release: str
    namespace: str
    chart: str
    """Its name in a repository, or its location: an OCI reference, the URL of an archive, a directory."""
    repository: str = ""
    version: str = ""
    values: tuple[str, ...] = ()
    """YAML documents; later ones win."""
    options: HelmOptions = HelmOptions()
    order: int = 0
    """Its position among the charts and manifests of the profile."""

    @property
    def source(self) -> str:
        """`source` of its inventory entries."""
        return source(self.namespace, self.release)

    @property
    def inputs(self) -> str:
        """A hash of all its inputs, as a label value."""
        fields = (self.chart, self.repository, self.version, self.values, self.options)
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()[:32]


SOURCE = "Helm "
"""The prefix of `source` in the inventory entries of releases."""


def source(namespace: str, release: str) -> str:
    """`source` in the inventory entries of a release."""
    return f"{SOURCE}{namespace}/{release}"


def read_chart(asked: HelmChart, *, values: tuple[str, ...] = (), order: int = 0) -> Chart:
    """The release for a helmChart of a profile. `unsupported` must be empty for it.

    `values`: from valuesFrom. As in Sveltos, they win over the values in the profile.
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
    """The unsupported settings, each with the name of its field."""
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
        found.append(f"{name}.repositoryURL: unsupported scheme {scheme!r} (valid: http, https, oci, file)")
    for number, one in enumerate(asked.values_from):
        if one.kind not in ("ConfigMap", "Secret"):
            found.append(f"{name}.valuesFrom[{number}].kind: unknown kind {one.kind!r} (valid: ConfigMap, Secret)")
    found += [f"{name}.options.{why}" for why in _refused(asked.options)]
    return found


def _location(asked: HelmChart) -> tuple[str, str]:
    """The chart and its repository; the repository is empty if the chart is a location itself."""
    url, name = asked.repository_url.rstrip("/"), asked.chart_name
    # Sveltos' users prefix it with the name of the repository, as after `helm repo add`.
    name = name.removeprefix(f"{asked.repository_name}/") if asked.repository_name else name
    if url.startswith(("oci://", "file://")):
        return (url if not name or url.endswith(f"/{name}") else f"{url}/{name}"), ""
    if url.endswith(_ARCHIVES):
        return url, ""
    return name, url


# Options, with Sveltos' names.


def options(given: dict[str, Any]) -> HelmOptions:
    """The Helm options for the options of a chart."""
    flags: list[str] = []
    for path, value in _leaves(given):
        know = _KNOWN.get(path)
        flags += know(value) if know and value not in (None, False, "", {}) else ()
    install = given.get("installOptions") or {}
    uninstall = given.get("uninstallOptions") or {}
    timeout = annotation_values.parse_duration(str(given.get("timeout") or f"{TIMEOUT:.0f}s"))
    history = (given.get("upgradeOptions") or {}).get("maxHistory", _HISTORY)
    return HelmOptions(
        timeout=TIMEOUT if isinstance(timeout, Unknown) else timeout.total_seconds(),
        rendering=tuple(flag for flag in flags if flag in _RENDERING),
        flags=(*(flag for flag in flags if flag not in _RENDERING), f"--history-max={history}"),
        create_namespace=install.get("createNamespace", True),
        hooks=not given.get("disableHooks"),
        cascade=uninstall.get("deletionPropagation") or HelmOptions().cascade,
        labels=tuple(sorted((given.get("labels") or {}).items())),
    )


def _refused(given: dict[str, Any]) -> list[str]:
    found = []
    for path, value in _leaves(given):
        if value in (None, False, "", {}, []):
            continue  # same as unset: CRD defaults have these values
        if path not in _KNOWN:
            found.append(f"{path}: not supported")
        elif (why := _CHECKS.get(path, _fine)(value)) is not None:
            found.append(f"{path}: {why}")
    return found


def _leaves(given: dict[str, Any]) -> list[tuple[str, Any]]:
    """Each option with its path, for example `upgradeOptions.maxHistory`."""
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
    # Sveltos' client cache: it does not exist here and has no effect.
    "enableClientCache": _read_elsewhere,
    "description": lambda text: [f"--description={text}"],
    "installOptions.createNamespace": _read_elsewhere,
    # `helm upgrade --install` does this by itself if a release was uninstalled with --keep-history.
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


# Flags that `helm template` supports as well, and that change its output.
_RENDERING = frozenset(
    ["--skip-crds", "--no-hooks", "--disable-openapi-validation", "--skip-schema-validation", "--dependency-update"]
)


def _fine(_: Any) -> None:
    return None


def _span(value: Any) -> str | None:
    return (
        f"{value!r} is not a duration (use one such as 5m or 1h30m)"
        if isinstance(annotation_values.parse_duration(str(value)), Unknown)
        else None
    )


def _cascades(value: Any) -> str | None:
    return (
        None
        if value in ("foreground", "background")
        else f"{value!r} would leave dependents behind (valid: foreground, background)"
    )


def _own_labels(value: Any) -> str | None:
    ours = [key for key in value if key.startswith(PREFIX)]
    return f"{', '.join(ours)} is reserved for Unwind" if ours else None


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "timeout": _span,
    "uninstallOptions.deletionPropagation": _cascades,
    "labels": _own_labels,
}


async def collect(client: Client, asked: HelmChart, *, namespace: str) -> tuple[str, ...]:
    """All values of valuesFrom in order, sorted by key within one object: later ones win.

    `namespace`: the cluster's, for references without a namespace. Raises if an object is missing or is not YAML.
    """
    found: list[str] = []
    for item in asked.values_from:
        found += await _of(client, item, item.namespace or namespace)
    return tuple(found)


async def _of(client: Client, reference: ValuesFrom, namespace: str) -> list[str]:
    resource = SECRETS if reference.kind == SECRETS.kind else CONFIG_MAPS
    who = f"{reference.kind} {namespace}/{reference.name}"
    try:
        held = await client.get(resource, reference.name, namespace=namespace)
    except NotFoundError:
        if reference.optional:
            return []
        raise TransientError(f"cannot read values: {who} not found", remedy="create it") from None
    # Sveltos uses the random order of Go maps; here the order is stable.
    texts = [_text(resource is SECRETS, who, key, value) for key, value in sorted((held.get("data") or {}).items())]
    # Checked first: a template need not be YAML.
    if _is_template(held) and any("{{" in text for text in texts):
        raise TransientError(f"cannot read values: templates are not supported ({who})", remedy="use plain values")
    for key, text in zip(sorted(held.get("data") or {}), texts, strict=True):
        await asyncio.to_thread(_check, who, key, text)
    return texts


def _is_template(held: Object) -> bool:
    return SVELTOS_TEMPLATE_ANNOTATION in (held["metadata"].get("annotations") or {})


def _text(secret: bool, who: str, key: str, value: str) -> str:
    if not secret:
        return value
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise TransientError(
            f"cannot read values: key {key!r} of {who} is not valid UTF-8 text", remedy="correct the key"
        ) from None


def _check(who: str, key: str, text: str) -> None:
    try:
        values = safe_yaml.load(text)
    except yaml.YAMLError as error:
        # Only the position: the text may be confidential.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise TransientError(
            f"cannot read values: key {key!r} of {who} is not YAML{where}", remedy="correct the key"
        ) from None
    if values is not None and not isinstance(values, dict):
        raise TransientError(
            f"cannot read values: key {key!r} of {who} is not a mapping", remedy="write its values as key: value"
        )
