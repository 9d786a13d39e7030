"""Whether a manifest runs Pods that the Pod Security Standard "baseline" does not allow (pure).

Such a Pod can take over its node. The API server enforces a standard only in namespaces that ask for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_UNCONFINED = "Unconfined"


def exceeds_baseline(document: Mapping[str, Any]) -> bool:
    """Whether a Pod, or the Pods of a workload with `spec.template`, may use more than the standard allows.

    A value of an unexpected type counts as more.
    """
    try:
        return _exceeds(_pod_spec(document))
    except (AttributeError, TypeError):
        return True


def _pod_spec(document: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = document.get("spec") or {}
    if document.get("kind") == "Pod":
        return spec
    return (spec.get("template") or {}).get("spec") or {}


def _exceeds(pod: Mapping[str, Any]) -> bool:
    context = pod.get("securityContext") or {}
    return (
        any(pod.get(field) for field in _HOST_NAMESPACES)
        or any("hostPath" in volume for volume in pod.get("volumes") or ())
        or bool(context.get("sysctls"))
        or _is_unconfined(context)
        or any(map(_container_exceeds, _containers(pod)))
    )


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for field in _CONTAINERS:
        yield from pod.get(field) or ()


def _container_exceeds(container: Mapping[str, Any]) -> bool:
    context = container.get("securityContext") or {}
    added = (context.get("capabilities") or {}).get("add") or ()
    return (
        bool(context.get("privileged"))
        or not _CAPABILITIES.issuperset(added)
        or context.get("procMount", "Default") != "Default"
        or _is_unconfined(context)
        or any(port.get("hostPort") for port in container.get("ports") or ())
    )


def _is_unconfined(context: Mapping[str, Any]) -> bool:
    profiles = ((context.get(field) or {}).get("type") for field in ("seccompProfile", "appArmorProfile"))
    windows = context.get("windowsOptions") or {}
    return _UNCONFINED in profiles or bool(windows.get("hostProcess")) or bool(context.get("seLinuxOptions"))
