"""Plans of clusters beside other deployers, for the pictures in the documentation. The planner makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.caaph import HELM_RELEASE_PROXIES
from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS
from unwind.api.meta import ObjectRef
from unwind.api.names import Reason
from unwind.api.policies import SourceKind
from unwind.api.unwind import (
    Blocker,
    Effort,
    Phase,
    Plan,
    StepState,
    StepStatus,
    Teardown,
    TeardownSpec,
    TeardownStatus,
)
from unwind.companions.companion import Handle, step_name
from unwind.companions.step_source import HandleDecision, step_of
from unwind.planning import waves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unwind.api.resources import Resource
    from unwind.planning.policy_order import PolicyOrder

NAMESPACE = "shops"
CLUSTER = "prod"
_POLICY = "production"


def flux_plan() -> Plan:
    """Flux on the management cluster, with a Kustomization that contains one on the cluster itself."""
    infra, databases, tenants = (_ref(KUSTOMIZATIONS, name) for name in ("infra", "databases", "tenants"))
    checkout = ObjectRef(kind=KUSTOMIZATIONS.kind, namespace="checkout", name="checkout")
    return _plan(
        [
            _handle(infra, 14),
            _handle(databases, 5, infra),
            _handle(_ref(KUSTOMIZATIONS, "shop"), 9, databases),
            _handle(_ref(HELM_RELEASES, "grafana"), 7),
            _handle(tenants, 2, infra),
            _handle(checkout, 6, tenants),
        ]
    )


def held_flux_teardown(plan: Plan) -> Teardown:
    """The teardown while a claim of a Kustomization is still there, although Flux has let go of the Kustomization."""
    shop = _ref(KUSTOMIZATIONS, "shop")
    claim = ObjectRef(version="v1", kind="PersistentVolumeClaim", namespace="shop", name="data")
    done = {"Kustomization/checkout/checkout", step_name(_ref(HELM_RELEASES, "grafana"))}
    going = {step_name(shop): 8, step_name(_ref(KUSTOMIZATIONS, "tenants")): 1}
    steps = []
    for step in plan.steps:
        removing = StepState.REMOVING if step.name in going else StepState.WAITING
        state = StepState.REMOVED if step.name in done else removing
        removed = step.objects if state is StepState.REMOVED else going.get(step.name, 0)
        steps.append(StepStatus(name=step.name, state=state.value, removed=removed))
    blocker = Blocker(
        object=claim,
        step=step_name(shop),
        reason=Reason.FINALIZER.value,
        message=f"{claim}: blocked by finalizer kubernetes.io/pvc-protection",
    )
    status = TeardownStatus(phase=Phase.HELD.value, steps=tuple(steps), blockers=(blocker,))
    return Teardown(spec=TeardownSpec(plan=plan), status=status)


def caaph_plan() -> Plan:
    """HelmReleaseProxies with the order of their HelmChartProxies, and the one that runs the network."""
    operator, ingress = _proxy("postgres-operator"), _proxy("ingress")
    return _plan(
        [
            _handle(operator, 11),
            _handle(ingress, 8),
            _handle(_proxy("grafana"), 6, operator, ingress),
            _handle(_proxy("cilium"), 21, last=True),
        ]
    )


def helm_plan() -> Plan:
    """Releases of plain Helm with the order of a policy. One of them is only tried, and one goes last."""

    def release(namespace: str, name: str, objects: int, *, last: bool = False) -> Handle:
        ref = ObjectRef(kind="Release", namespace=namespace, name=name)
        return _handle(ref, objects, source=SourceKind.HELM, last=last)

    handles = [
        release("payments", "api", 6),
        release("payments", "postgres", 9),
        release("shop-eu", "web", 4),
        release("kube-system", "ccm", 5, last=True),
    ]
    return _plan(handles, efforts={"Release/shop-eu/web": Effort.TRY}, orders=[(("api",), ("postgres",))])


def _ref(resource: Resource, name: str) -> ObjectRef:
    return ObjectRef(kind=resource.kind, namespace=NAMESPACE, name=name)


def _proxy(name: str) -> ObjectRef:
    return _ref(HELM_RELEASE_PROXIES, name)


def _handle(
    ref: ObjectRef, objects: int, *needs: ObjectRef, source: SourceKind = SourceKind.FLUX, last: bool = False
) -> Handle:
    depends_on = tuple(map(step_name, needs))
    return Handle(ref=ref, source=source, objects=objects, depends_on=depends_on, last=last)


def _plan(
    handles: Iterable[Handle], *, efforts: Mapping[str, Effort] | None = None, orders: Iterable[PolicyOrder] = ()
) -> Plan:
    efforts = efforts or {}
    drafts = [
        step_of(handle, HandleDecision(effort=efforts.get(handle.step, Effort.ENFORCE), policies=(_POLICY,))).draft
        for handle in handles
    ]
    return waves.plan(drafts, orders)
