"""The wiring of the manager: what its components share."""

from __future__ import annotations

import gc
from collections import Counter
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.owners import Owner
from unwind.api.features import ALL, DEFAULT, GATED, Feature, written
from unwind.api.rights import Setting
from unwind.capi.cluster_controller import ClusterTeardownController
from unwind.clock import ServerClock
from unwind.components import Role
from unwind.external.member_ends import MemberEnds
from unwind.install.manifests import manifests
from unwind.inventory.inventories import Inventories
from unwind.karmada.unjoin_controller import UnjoinController
from unwind.kube.informers import Informer, InformerSet
from unwind.kube.metrics import Metrics
from unwind.manager.context import ManagerContext, ManagerOptions
from unwind.manager.feature_gates import parse
from unwind.manager.health import new_registry
from unwind.manager.wiring import components
from unwind.members.members import Members
from unwind.teardown.request_controller import RequestController
from unwind.teardown.step_removers import RemovalDeps
from unwind.testing.objects import Objects

if TYPE_CHECKING:
    from unwind.api.features import Features
    from unwind.components import Components
    from unwind.kube.client import Client


def wired(client: Client, features: Features = ALL) -> list[Components]:
    registry = new_registry()
    return components(
        ManagerContext(
            ManagerOptions(
                namespace="home", roles=(Role.CONTROLLERS,), feature_gates=parse("ResourcesDeletionProtection=true")
            ),
            client=client,
            features=features,
            registry=registry,
            metrics=Metrics(registry),
            shards=cast("Any", Owner()),
            recorder=cast("Any", None),
        )
    )


def test_all_controllers_use_the_same_members_inventories_and_plugins() -> None:
    found = wired(Objects(resources=()).client)
    shared = [item for share in found for item in share.shared]
    [members] = [item for item in shared if isinstance(item, Members)]
    [ends] = [item for item in shared if isinstance(item, MemberEnds)]
    assert len(shared) == 2
    everything = reachable([controller for share in found for controller in (*share.controllers, *share.serving)])
    assert [item for item in everything if isinstance(item, Members)] == [members]
    assert len([item for item in everything if isinstance(item, Inventories)]) == 1
    deps = [item for item in everything if isinstance(item, RemovalDeps)]
    assert len(deps) == 2  # by the clock of the manager, and by that of the API server
    assert {item.members for item in deps} == {members}
    assert {item.external_ends for item in deps} == {ends}
    assert len({id(item.plugins) for item in deps}) == 1


def test_no_resource_of_the_management_cluster_is_watched_twice() -> None:
    found = wired(Objects(resources=()).client)
    everything = reachable([controller for share in found for controller in (*share.controllers, *share.serving)])
    watched = Counter(
        (item.view.resource.plural, item._namespace, item._labels, item._fields)
        for item in everything
        if isinstance(item, Informer)
    )
    assert {"customresourcedefinitions", "namespaces"} <= {plural for plural, *_ in watched}
    assert [what for what, times in watched.items() if times > 1] == []


@pytest.mark.parametrize(
    "features",
    [
        frozenset(),
        *(frozenset({feature, Feature.CAPI} if feature in GATED else {feature}) for feature in Feature),
        frozenset({Feature.CAPI, Feature.KARMADA}),
        DEFAULT,
        ALL,
    ],
    ids=written,
)
def test_the_manager_watches_only_what_its_features_have_rights_for(features: Features) -> None:
    parts = [
        part for share in wired(Objects(resources=()).client, features) for part in (*share.controllers, *share.serving)
    ]
    running = {
        id(informer) for part in parts if isinstance(part, InformerSet) for informer in cast("Any", part)._informers()
    }
    caches = {id(item) for part in parts if isinstance(part, InformerSet) for item in informers_of(part)}
    roles = [item for item in manifests(Setting(namespace="home", features=features)) if item.get("rules")]
    for informer in (item for item in reachable(parts) if isinstance(item, Informer)):
        if id(informer) in caches and id(informer) not in running:
            continue  # it belongs to a feature that is off, and is not run
        resource, namespace = informer.view.resource, informer._namespace
        assert any(
            resource.plural in rule.get("resources", ())
            and resource.group in rule["apiGroups"]
            and {"list", "watch"} <= set(rule["verbs"])
            and not rule.get("resourceNames")
            for role in roles
            if role["kind"] == "ClusterRole" or namespace == role["metadata"]["namespace"]
            for rule in role["rules"]
        ), f"{resource.plural} in {namespace or 'all namespaces'}"


def informers_of(part: InformerSet) -> list[Any]:
    """The informers that a set of caches holds, also those that it does not run."""
    held = [*vars(part).values(), *getattr(part, "sources", {}).values()]
    return [item for item in held if isinstance(item, Informer)]


def reachable(roots: list[Any]) -> list[Any]:
    """All objects of Unwind that these objects hold in attributes, closures or containers."""
    found: dict[int, Any] = {}
    waiting: list[Any] = list(roots)
    while waiting:
        item = waiting.pop()
        if id(item) in found or isinstance(item, ModuleType | type | str | bytes):
            continue
        found[id(item)] = item
        # Not the globals of a function: they lead to everything.
        held = (item.__closure__, item.__defaults__) if isinstance(item, FunctionType) else gc.get_referents(item)
        waiting += held
    return [item for item in found.values() if type(item).__module__.startswith("unwind.")]


def test_whoever_carries_teardowns_out_goes_by_the_api_servers_clock_and_by_the_same_keys() -> None:
    client = Objects(resources=()).client
    found = wired(client)
    carriers = [
        controller
        for share in found
        for controller in share.controllers
        if isinstance(controller, ClusterTeardownController | RequestController | UnjoinController)
    ]
    assert len(carriers) == 3
    for carrier in carriers:
        assert isinstance(carrier._clock, ServerClock)
        assert carrier._clock._time is client.time
    assert len({id(carrier._keys) for carrier in carriers}) == 1
