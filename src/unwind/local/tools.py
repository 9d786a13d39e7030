"""The binaries of a control plane, and where they are found: variable, KUBEBUILDER_ASSETS, PATH or cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unwind.errors import UnwindError, UsageError
from unwind.local import golang
from unwind.local.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterable

_MIB = 1 << 20
_VERSION_PACKAGE = "k8s.io/component-base/version"


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """One of our go.mod files, which pins a release and its dependencies."""

    name: str
    source: str
    """The Go module that is built."""
    directory: Path
    ldflags: str = "-s -w"
    """Linker flags; {version}, {major} and {minor} are replaced by those of the release."""
    sources_bytes: int = 0
    """The size of its sources, packed and unpacked."""
    packages: int = 0
    """The number of packages of its largest tool."""

    @property
    def version(self) -> str:
        return required_version((self.directory / "go.mod").read_text(), self.source)

    @property
    def flags(self) -> tuple[str, ...]:
        """The build flags of its tools; part of the key in Go's build cache and in ours."""
        major, minor = self.version.removeprefix("v").split(".")[:2]
        stamped = self.ldflags.format(version=self.version, major=major, minor=minor)
        return (*golang.FLAGS, "-ldflags", stamped)

    @property
    def shelf(self) -> Path:
        """The cache directory of its binaries; one per set of sources, flags and platform."""
        digest = hashlib.sha256()
        for name in ("go.mod", "go.sum"):
            digest.update((self.directory / name).read_bytes())
        digest.update(repr((self.flags, sorted(golang.settings().items()))).encode())
        return cache_dir() / "bin" / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A binary, and the files of its sources that it needs at runtime."""

    name: str
    module: Module
    package: str
    assets: tuple[str, ...] = ()
    """Glob patterns, relative to the root of the module's sources. File names are unique."""
    other_assets: tuple[tuple[str, str], ...] = ()
    """The same from other modules: MODULE@VERSION, whose checksum is in our go.sum, and a glob pattern."""
    exact: bool = False
    """Whether only the pinned release will do. A binary that is not from our cache can have any version."""

    @property
    def variable(self) -> str:
        """The environment variable with the path of a binary to use."""
        return "UNWIND_" + self.name.upper().replace("-", "_")


class Origin(StrEnum):
    """Where a binary comes from."""

    VARIABLE = "environment variable"
    ASSETS = "KUBEBUILDER_ASSETS"
    PATH = "PATH"
    CACHE = "cache"
    BUILT = "built now"


class Binary(msgspec.Struct, frozen=True):
    """An executable binary."""

    name: str
    path: Path
    origin: Origin


class CacheCondition(StrEnum):
    """The state of a cache entry."""

    WHOLE = "is complete"
    ABSENT = "is missing"
    UNRECORDED = "has no record of a finished build"
    OTHER_SIZE = "differs in size from the finished build"


class CacheRecord(msgspec.Struct, frozen=True):
    """Written beside a cache entry when it is complete; an entry without a record is incomplete."""

    size: int
    sha256: str


def required_version(go_mod: str, source: str) -> str:
    """The version of a module that a go.mod requires."""
    line = re.search(rf"^(?:\s+|require\s+){re.escape(source)}\s+(\S+)", go_mod, re.MULTILINE)
    if not line:
        raise ValueError(f"no require line for {source}")
    return line[1]


def find_binary(tool: Tool) -> Binary | None:
    """Find a binary: environment variable, KUBEBUILDER_ASSETS, PATH, cache. None if it must be built."""
    if not tool.exact and (elsewhere := _find_elsewhere(tool)):
        return elsewhere
    if condition(cached := binary_path(tool)) is CacheCondition.WHOLE and _executable(cached):
        return Binary(tool.name, cached, Origin.CACHE)
    return None


def _find_elsewhere(tool: Tool) -> Binary | None:
    if named := os.environ.get(tool.variable):
        path = Path(named).absolute()
        if not _executable(path):
            raise UnwindError(
                f"invalid {tool.variable}: {named} is not an executable file",
                remedy="correct it, or unset it",
            )
        return Binary(tool.name, path, Origin.VARIABLE)
    # The directory of the binaries that envtest of controller-runtime uses. It has no kube-controller-manager.
    if (directory := os.environ.get("KUBEBUILDER_ASSETS")) and _executable(Path(directory) / tool.name):
        return Binary(tool.name, Path(directory).absolute() / tool.name, Origin.ASSETS)
    if on_path := shutil.which(tool.name):
        return Binary(tool.name, Path(on_path).absolute(), Origin.PATH)
    return None


def assets(tool: Tool) -> Path:
    """The directory of a tool's assets, which `building.ensure` creates."""
    path = assets_path(tool)
    if (state := condition(path)) is not CacheCondition.WHOLE:
        raise UnwindError(f"cannot use {tool.name}: {path} {state}", remedy="run `unwind local build`")
    return path


def lacks_assets(tool: Tool) -> bool:
    """Whether its assets are missing."""
    return bool(tool.assets or tool.other_assets) and condition(assets_path(tool)) is not CacheCondition.WHOLE


def binary_path(tool: Tool) -> Path:
    return tool.module.shelf / tool.name


def assets_path(tool: Tool) -> Path:
    return tool.module.shelf / f"{tool.name}.assets"


def record_path(path: Path) -> Path:
    """The path of the record of a cache entry."""
    return path.with_name(f"{path.name}.json")


def condition(path: Path) -> CacheCondition:
    """The state of a cache entry. Checksums are not verified, because each start would read half a gigabyte."""
    if not path.exists():
        return CacheCondition.ABSENT
    try:
        record = msgspec.json.decode(record_path(path).read_bytes(), type=CacheRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return CacheCondition.UNRECORDED
    return CacheCondition.WHOLE if record.size == size_of(path) else CacheCondition.OTHER_SIZE


def shelve(made: Path, target: Path) -> None:
    """Move a finished build into the cache. The record is written last, and makes the entry valid."""
    digest = hashlib.sha256()
    for file in contents(made):
        with file.open("rb") as content:
            os.fsync(content)
            while chunk := content.read(1 << 20):
                digest.update(chunk)
    record = CacheRecord(size=size_of(made), sha256=digest.hexdigest())
    record_path(target).unlink(missing_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    made.replace(target)
    draft = record_path(made)
    draft.write_bytes(msgspec.json.encode(record))
    draft.replace(record_path(target))


def contents(path: Path) -> list[Path]:
    """The files of a cache entry, in order."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in contents(path))


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _module(name: str, source: str, *, sources_mib: int, packages: int, ldflags: str = "-s -w") -> Module:
    return Module(
        name=name,
        source=source,
        directory=golang.MODULES / name,
        ldflags=ldflags,
        sources_bytes=sources_mib * _MIB,
        packages=packages,
    )


# Sizes measured on linux/amd64, to check the disk space beforehand.
def _kubernetes(name: str) -> Module:
    return _module(
        name,
        "k8s.io/kubernetes",
        sources_mib=650,
        packages=2400,
        ldflags=(
            f"-s -w -X {_VERSION_PACKAGE}.gitVersion={{version}}"
            f" -X {_VERSION_PACKAGE}.gitMajor={{major}} -X {_VERSION_PACKAGE}.gitMinor={{minor}}"
        ),
    )


KUBERNETES = _kubernetes("kubernetes")
KUBERNETES_MINORS = {"1.36": KUBERNETES, "1.35": _kubernetes("kubernetes-1.35")}
"""The minor versions of Kubernetes that can be built."""

ETCD = Tool(
    name="etcd",
    module=_module("etcd", "go.etcd.io/etcd/server/v3", sources_mib=350, packages=600),
    package="go.etcd.io/etcd/server/v3",
)
KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER, KUBECTL = (
    Tool(name=name, module=KUBERNETES, package=f"k8s.io/kubernetes/cmd/{name}")
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
)
KWOK = Tool(
    name="kwok",
    module=_module("kwok", "sigs.k8s.io/kwok", sources_mib=370, packages=1000),
    package="sigs.k8s.io/kwok/cmd/kwok",
    # The files of KWOK's own kustomize/stage/fast. This heartbeat comes every ten minutes: in between, a Lease keeps
    # the Node ready, which KWOK renews only with --node-lease-duration-seconds=40.
    assets=(
        "kustomize/stage/node/fast/node-*.yaml",
        "kustomize/stage/node/heartbeat-with-lease/node-*.yaml",
        "kustomize/stage/pod/fast/pod-*.yaml",
    ),
)
HELM = Tool(
    name="helm",
    module=_module("helm", "helm.sh/helm/v3", sources_mib=460, packages=1000),
    package="helm.sh/helm/v3/cmd/helm",
)
CLUSTER_API_MANAGER = Tool(
    name="cluster-api-manager",
    module=_module("capi", "sigs.k8s.io/cluster-api", sources_mib=420, packages=1300),
    package="sigs.k8s.io/cluster-api/core",
    assets=("core/config/crd/bases/*.yaml",),
)
# Not in ALL: no control plane needs it.
CLUSTERCTL = Tool(
    name="clusterctl",
    module=_module("clusterctl", "sigs.k8s.io/cluster-api", sources_mib=420, packages=1000),
    package="sigs.k8s.io/cluster-api/cmd/clusterctl",
)
# The controllers of others that Unwind is tested beside. Not in ALL: no control plane needs them.
CAAPH = Tool(
    name="caaph",
    module=_module("caaph", "sigs.k8s.io/cluster-api-addon-provider-helm", sources_mib=900, packages=1500),
    package="sigs.k8s.io/cluster-api-addon-provider-helm",
    assets=("config/crd/bases/*.yaml",),
)
KUBEADM_CONTROL_PLANE = Tool(
    name="kubeadm-control-plane",
    module=_module("kubeadm-control-plane", "sigs.k8s.io/cluster-api", sources_mib=460, packages=1300),
    package="sigs.k8s.io/cluster-api/controlplane/kubeadm",
    # It also creates KubeadmConfigs, which are those of the bootstrap provider.
    assets=("controlplane/kubeadm/config/crd/bases/*.yaml", "bootstrap/kubeadm/config/crd/bases/*.yaml"),
)
# Sources as ExternalArtifacts need the CRDs of source-controller, not the program.
_SOURCE_CRDS = ("github.com/fluxcd/source-controller@v1.9.0", "config/crd/bases/*.yaml")
KUSTOMIZE_CONTROLLER = Tool(
    name="kustomize-controller",
    module=_module("kustomize-controller", "github.com/fluxcd/kustomize-controller", sources_mib=1300, packages=1900),
    package="github.com/fluxcd/kustomize-controller",
    assets=("config/crd/bases/*.yaml",),
    other_assets=(_SOURCE_CRDS,),
)
HELM_CONTROLLER = Tool(
    name="helm-controller",
    module=_module("helm-controller", "github.com/fluxcd/helm-controller", sources_mib=900, packages=1650),
    package="github.com/fluxcd/helm-controller",
    assets=("config/crd/bases/*.yaml",),
    other_assets=(_SOURCE_CRDS,),
)

COMPANIONS = (CAAPH, KUBEADM_CONTROL_PLANE, KUSTOMIZE_CONTROLLER, HELM_CONTROLLER)

ALL = (
    ETCD,
    KUBE_APISERVER,
    KUBE_CONTROLLER_MANAGER,
    KUBE_SCHEDULER,
    KUBECTL,
    KWOK,
    HELM,
    CLUSTER_API_MANAGER,
)


def for_kubernetes(wanted: Iterable[Tool], minor: str = "") -> list[Tool]:
    """These tools, with the servers of exactly this minor version of Kubernetes, or of that in UNWIND_KUBERNETES.

    All as they are if neither is set. kubectl stays: it supports servers that are one minor version older.
    """
    minor = minor or os.environ.get("UNWIND_KUBERNETES", "")
    if not minor:
        return list(wanted)
    if minor not in KUBERNETES_MINORS:
        raise UsageError(
            f"cannot build Kubernetes {minor} (valid: {', '.join(KUBERNETES_MINORS)})",
            remedy="to use your own binaries, set UNWIND_KUBE_APISERVER and UNWIND_KUBE_CONTROLLER_MANAGER instead",
        )
    servers = (KUBE_APISERVER, KUBE_CONTROLLER_MANAGER, KUBE_SCHEDULER)
    module = KUBERNETES_MINORS[minor]
    return [msgspec.structs.replace(tool, module=module, exact=True) if tool in servers else tool for tool in wanted]
