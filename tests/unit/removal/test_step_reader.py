"""How a member serves what was written down: whatever is out of sight is not gone."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.removal.making import item
from unwind.api.resources import API_SERVICES, CUSTOM_RESOURCE_DEFINITIONS, Resource
from unwind.kube.discovery import ServedKind
from unwind.kube.errors import APIStatus, NotFoundError, UnreachableError
from unwind.removal.step_reader import Served

GADGETS = Resource("example.dev", "v1", "gadgets", "Gadget")
GADGETS_V2 = Resource("example.dev", "v2", "gadgets", "Gadget")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


class Somewhere:
    """A stand-in for a member, its client and its discovery."""

    def __init__(self, *kinds: Resource, definitions: tuple[str, ...] = (), services: tuple[str, ...] = ()) -> None:
        self.served = [ServedKind(resource=resource, verbs=frozenset(["list"])) for resource in kinds]
        self.definitions = definitions
        self.services = services
        self.another = False
        self.readings = 0
        self.client = self.discovery = self

    async def kinds(self, *, anew: bool = False) -> list[ServedKind]:
        self.readings += 1
        return self.served

    async def get(self, resource: Resource, name: str) -> dict[str, Any]:
        assert resource == CUSTOM_RESOURCE_DEFINITIONS
        if name not in self.definitions:
            raise NotFoundError(APIStatus(code=404, reason="NotFound"), request="GET")
        return {}

    async def list(self, resource: Resource) -> list[dict[str, Any]]:
        assert resource == API_SERVICES
        local: dict[str, Any] = {"spec": {"group": "example.dev"}}
        return [local, *({"spec": {"group": group, "service": {"name": "x"}}} for group in self.services)]

    async def verify(self) -> None:
        if self.another:
            raise UnreachableError("another cluster answers")


def served(somewhere: Somewhere) -> Served:
    return Served(cast("Any", somewhere))


GADGET = item("Gadget", group="example.dev")
DEFINITION = "gadgets.example.dev"


@pytest.mark.parametrize(
    ("somewhere", "it", "found"),
    [
        (Somewhere(GADGETS_V2, GADGETS), GADGET, GADGETS),
        # In the version that there is.
        (Somewhere(GADGETS_V2), GADGET, GADGETS_V2),
        # It has a CRD that serves nothing now.
        (Somewhere(CONFIG_MAPS, definitions=(DEFINITION,)), GADGET, GADGETS),
        # Another server has it, and is away.
        (Somewhere(CONFIG_MAPS, services=("example.dev",)), GADGET, GADGETS),
        (Somewhere(CONFIG_MAPS, services=("other.dev",)), GADGET, None),
        (Somewhere(CONFIG_MAPS), GADGET, None),
        # The API server's own kinds have no CRD, and are not gone because of that.
        (Somewhere(GADGETS), item("ConfigMap"), CONFIG_MAPS),
    ],
)
async def test_a_kind_is_gone_only_with_its_definition(somewhere: Somewhere, it: Any, found: Resource | None) -> None:
    assert await served(somewhere).resource(it) == found


async def test_another_cluster_cannot_tell_that_a_kind_is_gone() -> None:
    somewhere = Somewhere(CONFIG_MAPS)
    somewhere.another = True
    with pytest.raises(UnreachableError):
        await served(somewhere).resource(GADGET)


async def test_ten_thousand_objects_ask_once() -> None:
    somewhere = Somewhere(GADGETS, CONFIG_MAPS)
    kinds = served(somewhere)
    for number in range(10_000):
        assert await kinds.resource(item("ConfigMap", f"c-{number}")) == CONFIG_MAPS
    assert somewhere.readings == 1


async def test_what_was_served_before_is_doubted_when_there_is_reason_to() -> None:
    somewhere = Somewhere(GADGETS)
    kinds = served(somewhere)
    assert await kinds.resource(GADGET) == GADGETS
    somewhere.served = []
    assert await kinds.resource(GADGET) == GADGETS
    assert await kinds.resource(GADGET, anew=True) is None
    # Should it come back, what was recorded before does not.
    somewhere.served = [ServedKind(resource=GADGETS, verbs=frozenset(["list"]))]
    assert await kinds.resource(GADGET, anew=True) is None
