"""Which steps serve a drain, because they have a controller that cleans up for it: they are removed after it (pure)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from unwind.drain.rules import LOAD_BALANCERS, VOLUMES
from unwind.why import finalizers
from unwind.why.facts import ControllerWorkload

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from unwind.api.meta import ObjectRef
    from unwind.drain.objects import DrainedObject
    from unwind.drain.rules import DrainDecision

_WORKLOADS = frozenset({("apps", "Deployment"), ("apps", "DaemonSet"), ("apps", "StatefulSet")})
_CLASSES = {
    ("networking.k8s.io", "IngressClass"): LOAD_BALANCERS,
    ("gateway.networking.k8s.io", "GatewayClass"): LOAD_BALANCERS,
    ("storage.k8s.io", "CSIDriver"): VOLUMES,
}
_DNS = ("*external-dns*", "*externaldns*")
_PROGRAMS: dict[str, tuple[str, ...]] = {
    LOAD_BALANCERS: (
        "*cloud-controller-manager*",
        "*load-balancer-controller*",
        "*ingress-controller*",
        "*ingress-nginx*",
        "*nginx-ingress*",
        "*ingressgateway*",
        "*envoy-gateway*",
        "*gateway-controller*",
        "*traefik*",
        "*contour*",
        "haproxy-*",
        "*metallb*",
        "kube-vip*",
        "istiod*",
        *_DNS,
    ),
    VOLUMES: ("*csi-controller*", "*csi-*-controller*", "*csi-provisioner*", "*csi-attacher*", "*csi-node*"),
}
# By API group, for kinds that a policy names.
_OF_GROUPS = {"karpenter.sh": ("*karpenter*",), "externaldns.k8s.io": _DNS}


def workloads_of(entries: Iterable[ObjectRef]) -> list[ObjectRef]:
    """The workloads among the objects of a step: any of them may be a controller."""
    return [ref for ref in entries if (ref.group, ref.kind) in _WORKLOADS]


def serves(
    entries: Iterable[ObjectRef], drained: Iterable[DrainDecision], programs: Collection[str] = ()
) -> frozenset[str]:
    """Which steps of a drain the objects of another step clean up for: by their classes, by the CRDs of drained kinds
    and by known names of controllers. `programs`: further names of controllers, from the finalizers of load balancers.
    """
    found: set[str] = set()
    refs = list(entries)
    workloads = [ref.name for ref in workloads_of(refs)]
    classes = {_CLASSES[ref.group, ref.kind] for ref in refs if (ref.group, ref.kind) in _CLASSES}
    crds = [ref.name for ref in refs if ref.kind == "CustomResourceDefinition"]
    for decision in drained:
        groups = {kind.group for kind in decision.kinds} - {""}
        patterns = [*_PROGRAMS.get(decision.name, ()), *programs]
        patterns += [pattern for group in groups for pattern in _OF_GROUPS.get(group, ())]
        if (
            decision.name in classes
            or any(crd.endswith(f".{group}") for crd in crds for group in groups)
            or any(fnmatchcase(name, pattern) for name in workloads for pattern in patterns)
        ):
            found.add(decision.name)
    return frozenset(found)


def serves_finalizers(
    refs: Iterable[ObjectRef], drained: Iterable[DrainDecision], found: Mapping[str, Sequence[DrainedObject]]
) -> frozenset[str]:
    """Which steps of a drain wait for a controller among these objects: one that seems to serve the finalizer of a
    drained object, by its name or because it set the finalizer."""
    # Whether it runs now says nothing about the order.
    workloads = [ControllerWorkload(object=ref, running=True) for ref in workloads_of(refs)]
    return frozenset(
        decision.name
        for decision in drained
        for item in found[decision.name]
        if item.finalizer
        and not finalizers.known_controller(item.finalizer, item.ref.kind)
        and finalizers.all_serving(item.finalizer, workloads, item.finalizer_writers)
    )
