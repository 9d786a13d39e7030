"""The same rules for every way of deleting: one table, with a check or a reason in each cell.

Each way runs once, with the objects of all its rules. A cell fails with what its own rule found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import pytest
import pytest_asyncio

from tests.namespaces import leave_namespace
from tests.plane.support import azure_objects
from tests.plane.support.azure_objects import CACHES, AzureObjects, azure_object, cache_id, ledger_of, map_credentials
from tests.plane.support.controllers import HOLD
from tests.plane.support.profiles import config_map
from tests.plane.support.removals import stateful_set, until_claimed
from tests.plane.support.unjoins import MEMBER
from tests.plane.support.ways_of_deleting import (
    ChartPrune,
    ClusterDeletion,
    HelmUninstall,
    MemberUnjoin,
    ProfilePrune,
    ProfileWithdrawal,
    RequestedDeletion,
    WorkDeletion,
    WorkPrune,
)
from unwind.api.names import DELETE_POLICY_ANNOTATION, DELETE_PROTECTION_LABEL, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS, NAMESPACES, PERSISTENT_VOLUME_CLAIMS, STATEFUL_SETS
from unwind.testing.arm import Arm
from unwind.testing.managers import remove_rights
from unwind.testing.namespaces import new_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.plane.support.ways_of_deleting import Way
    from unwind.kube.client import Object
    from unwind.local.plane import Plane

pytestmark = pytest.mark.timeout(300)


# The rules


class Rule:
    """One rule: the objects that it is about, what is done to them, and what must be true."""

    object_name: ClassVar[str]
    """The name of its object."""

    def __init__(self, way: Way, arm: Arm) -> None:
        """`arm`: the stand-in for Azure."""
        del arm
        self.way = way

    def manifests(self) -> list[Object]:
        """What is deployed."""
        return [config_map(self.way.namespace, self.object_name)]

    async def before(self) -> None:
        """After the deployment, before the deletion. No controller runs."""

    async def during(self) -> None:
        """While the deletion runs."""

    async def free(self) -> None:
        """Remove what blocks the deletion, if anything does."""

    async def after(self) -> None:
        """After the deletion is complete."""

    def never_deleted(self) -> None:
        assert self.object_name not in self.way.deleted()


class Protection(Rule):
    """A protected object blocks, with the label, who set it, and the command that allows the deletion."""

    object_name = "protected"

    async def before(self) -> None:
        await self.way.patch(self.object_name, {"labels": {DELETE_PROTECTION_LABEL: "Always"}})

    async def during(self) -> None:
        there = f" --cluster {self.way.member.split('/', 2)[2]}" if self.way.member else ""
        await self.way.until_blocked(
            f"blocked by label {DELETE_PROTECTION_LABEL}=Always, set by jane",
            f"unwind unprotect configmaps/{self.object_name} -n {self.way.namespace}{there}",
        )
        self.never_deleted()

    async def free(self) -> None:
        await self.way.patch(self.object_name, {"labels": {DELETE_PROTECTION_LABEL: None}})
        await self.way.retry(self.object_name)

    async def after(self) -> None:
        assert await self.way.get(CONFIG_MAPS, self.object_name) is None


class ProtectedRelease(Protection):
    """A protected object blocks its whole Helm release."""

    async def during(self) -> None:
        await super().during()
        assert self.way.deleted() == [], "nothing of the release is deleted before"


class ForeignContent(Rule):
    """A Namespace with objects of others stays, and the ledger names it."""

    object_name = "theirs"

    @property
    def room(self) -> str:
        return f"{self.way.namespace}-room"

    def manifests(self) -> list[Object]:
        return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.room}}]

    async def before(self) -> None:
        await self.way.client.create(CONFIG_MAPS, config_map(self.room, self.object_name))

    async def after(self) -> None:
        room = await self.way.get(NAMESPACES, self.room)
        assert room
        assert "deletionTimestamp" not in room["metadata"]
        assert await self.way.get(CONFIG_MAPS, self.object_name, namespace=self.room)
        assert (await self.way.ledger()).get(self.room) == "ForeignContent"


class LateContent(ForeignContent):
    """A request includes what is in a Namespace when it is made. What is created there later is foreign content."""

    async def before(self) -> None:
        held = config_map(self.room, "held")
        held["metadata"]["finalizers"] = [HOLD]
        await self.way.client.create(CONFIG_MAPS, held)

    async def during(self) -> None:
        await self.way.until_blocked(f"ConfigMap {self.room}/held waits for finalizers {HOLD}")
        await super().before()

    async def free(self) -> None:
        await self.way.client.patch(CONFIG_MAPS, "held", {"metadata": {"finalizers": None}}, namespace=self.room)

    async def after(self) -> None:
        await super().after()
        assert await self.way.get(CONFIG_MAPS, "held", namespace=self.room) is None


class Ownership(Rule):
    """An object with the label of another owner stays."""

    object_name = "taken"

    async def before(self) -> None:
        await self.way.patch(self.object_name, {"labels": {OWNER_LABEL: "another-owner"}})

    async def after(self) -> None:
        assert await self.way.get(CONFIG_MAPS, self.object_name)
        self.never_deleted()
        assert (await self.way.ledger()).get(self.object_name) in self.expected()

    def expected(self) -> tuple[str | None, ...]:
        return ("NotOurs",)


class OwnershipOfPruned(Ownership):
    """The same. After the prune, an object of another owner is no longer in the inventory."""

    def expected(self) -> tuple[str | None, ...]:
        return (None,)


class OwnershipOfRequested(Ownership):
    """A request is refused for an object that an owner would deploy again."""

    async def during(self) -> None:
        await self.way.until_blocked("the owner another-owner manages it and would deploy it again")

    def expected(self) -> tuple[str | None, ...]:
        return (None,)


class Uid(Rule):
    """An object that was deleted and created again by someone else stays, and every DELETE has a uid."""

    object_name = "replaced"

    async def before(self) -> None:
        found = await self.way.get(CONFIG_MAPS, self.object_name)
        assert found
        self.old = found["metadata"]["uid"]
        await self.way.remove(self.object_name, self.old)
        made = await self.way.client.create(CONFIG_MAPS, config_map(self.way.namespace, self.object_name, by="jane"))
        self.new = made["metadata"]["uid"]

    async def stays(self) -> None:
        found = await self.way.get(CONFIG_MAPS, self.object_name)
        assert found
        assert found["metadata"]["uid"] == self.new
        assert "deletionTimestamp" not in found["metadata"]

    async def after(self) -> None:
        await self.stays()
        assert [event.object_ref for event in self.way.deletions() if not event.uid] == []


class UidInRelease(Uid):
    """A release names its objects: the uninstall waits until the object of someone else is removed."""

    async def during(self) -> None:
        name = f"ConfigMap {self.way.namespace}/{self.object_name}"
        await self.way.until_blocked(f"it names {name}, not created by this release")
        await self.stays()

    async def free(self) -> None:
        await self.way.remove(self.object_name, self.new)

    async def after(self) -> None:
        assert await self.way.get(CONFIG_MAPS, self.object_name) is None
        by_us = [event for event in self.way.deletions() if event.user_agent.startswith("unwind")]
        assert [event.object_ref for event in by_us if not event.uid] == []


class Paused(Rule):
    """Nothing is deleted while the cluster is paused."""

    object_name = "paused"
    reported = "is paused"

    async def before(self) -> None:
        await self.way.pause(paused=True)

    async def during(self) -> None:
        await self.way.until_blocked(self.reported)
        assert self.way.deleted() == []

    async def free(self) -> None:
        await self.way.pause(paused=False)

    async def after(self) -> None:
        assert await self.way.get(CONFIG_MAPS, self.object_name) is None


class PrunedSuspendedWork(Paused):
    """Nothing is pruned while the Work is suspended."""

    reported = "spec.suspendDispatching is true"


class DeletedSuspendedWork(Paused):
    """suspendDispatching stops deploying only: a suspended Work is removed when it is deleted."""

    async def during(self) -> None:
        pass

    async def free(self) -> None:
        pass


class UnknownValue(Rule):
    """An unknown value of a deletion policy blocks until it is corrected."""

    object_name = "unknown"
    reported: ClassVar[tuple[str, ...]] = ("its delete policy 'kepp' is not known",)

    async def before(self) -> None:
        await self.way.patch(self.object_name, {"annotations": {DELETE_POLICY_ANNOTATION: "kepp"}})

    async def during(self) -> None:
        await self.way.until_blocked(f"ConfigMap {self.way.namespace}/{self.object_name}: ", *self.reported)
        self.never_deleted()

    async def free(self) -> None:
        await self.way.patch(self.object_name, {"annotations": {DELETE_POLICY_ANNOTATION: None}})
        await self.way.retry(self.object_name)

    async def after(self) -> None:
        assert await self.way.get(CONFIG_MAPS, self.object_name) is None


class UnknownValueOfRequested(UnknownValue):
    """A request is refused because of an unknown value."""

    reported = ("policy 'kepp' is not known", "UnknownValue")


class Volumes(Rule):
    """A StatefulSet is deleted. Its claims stay, and are in the ledger."""

    object_name = "data-db-0"

    def manifests(self) -> list[Object]:
        body = stateful_set(self.way.namespace, "db", replicas=1)
        return [{"apiVersion": STATEFUL_SETS.api_version, "kind": STATEFUL_SETS.kind, **body}]

    async def before(self) -> None:
        await until_claimed(self.way.client, self.way.namespace, self.object_name)

    async def after(self) -> None:
        assert await self.way.get(STATEFUL_SETS, "db") is None
        claim = await self.way.get(PERSISTENT_VOLUME_CLAIMS, self.object_name)
        assert claim
        assert "deletionTimestamp" not in claim["metadata"]
        assert (await self.way.ledger()).get(self.object_name) == "KeptByPolicy"


class Ledger(Rule):
    """An object that its policy keeps stays, and the ledger names it with the reason and who decided."""

    object_name = "kept"

    @property
    def room(self) -> str:
        """The namespace of the object."""
        return self.way.namespace

    async def before(self) -> None:
        await self.way.patch(self.object_name, {"annotations": {DELETE_POLICY_ANNOTATION: "skip"}})

    async def after(self) -> None:
        assert await self.way.get(CONFIG_MAPS, self.object_name, namespace=self.room)
        self.never_deleted()
        entries = [entry for chunk in await self.way.inventories() for entry in chunk.spec.entries.values()]
        [note] = [entry.ledger for entry in entries if entry.object.name == self.object_name]
        assert note
        assert (note.reason, note.by) == ("KeptByPolicy", f"the annotation {DELETE_POLICY_ANNOTATION}")


class LedgerOfRequested(Ledger):
    """A kept object in a Namespace whose deletion is requested keeps the Namespace. The ledger names both."""

    @property
    def room(self) -> str:
        return f"{self.way.namespace}-kept"

    def manifests(self) -> list[Object]:
        return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.room}}]

    async def before(self) -> None:
        kept = config_map(self.room, self.object_name)
        kept["metadata"]["annotations"] = {DELETE_POLICY_ANNOTATION: "skip"}
        await self.way.client.create(CONFIG_MAPS, kept)

    async def after(self) -> None:
        await super().after()
        entries = [entry for chunk in await self.way.inventories() for entry in chunk.spec.entries.values()]
        [note] = [entry.ledger for entry in entries if entry.object.name == self.room]
        assert note
        assert note.reason == "ForeignContent"
        assert f"ConfigMap {self.room}/{self.object_name}" in note.message


class ExternalEnd(Rule):
    """An object that represents something outside waits for credentials of its member. Then the external end deletes
    the resource, and the finalizer of the operator, which does not run, is removed with a ledger entry."""

    def __init__(self, way: Way, arm: Arm) -> None:
        super().__init__(way, arm)
        self.name = f"cache-{way.namespace}"
        self.azure = AzureObjects(way.client, way.namespace, arm)

    def manifests(self) -> list[Object]:
        return [azure_object(CACHES, self.way.namespace, self.name)]

    def at_azure(self) -> list[tuple[str, str]]:
        return [change for change in self.azure.changed() if change[1] == cache_id(self.name)]

    async def before(self) -> None:
        made = await self.azure.provision(CACHES, self.name)
        self.uid = made["metadata"]["uid"]

    async def during(self) -> None:
        await self.way.until_blocked("no azure credentials are mapped to", self.way.member)
        assert self.at_azure() == []

    async def free(self) -> None:
        await map_credentials(self.way.management, self.way.home, member=self.way.member, namespaces=self.way.namespace)

    async def after(self) -> None:
        assert await self.way.get(CACHES, self.name) is None
        assert self.at_azure() == [("DELETE", cache_id(self.name))]
        assert await ledger_of(self.way.management, self.way.home, self.uid)


# The table


class NotApplicable(msgspec.Struct, frozen=True):
    """A cell without a check."""

    reason: str


RULES = (
    "protection",
    "foreign content",
    "ownership",
    "uid",
    "paused",
    "unknown value",
    "external end",
    "volumes",
    "ledger",
)
COMMON: dict[str, type[Rule] | NotApplicable] = {
    "protection": Protection,
    "foreign content": ForeignContent,
    "ownership": Ownership,
    "uid": Uid,
    "paused": Paused,
    "unknown value": UnknownValue,
    "external end": ExternalEnd,
    "volumes": Volumes,
    "ledger": Ledger,
}
TABLE: dict[type[Way], dict[str, type[Rule] | NotApplicable]] = {
    ClusterDeletion: COMMON,
    ProfileWithdrawal: COMMON,
    ProfilePrune: COMMON | {"ownership": OwnershipOfPruned},
    WorkDeletion: COMMON | {"paused": DeletedSuspendedWork},
    WorkPrune: COMMON
    | {
        "ownership": OwnershipOfPruned,
        "paused": PrunedSuspendedWork,
    },
    MemberUnjoin: COMMON | {"paused": NotApplicable("a Cluster of Karmada cannot be paused")},
    RequestedDeletion: COMMON
    | {
        "foreign content": LateContent,
        "ownership": OwnershipOfRequested,
        "unknown value": UnknownValueOfRequested,
        "ledger": LedgerOfRequested,
        "external end": NotApplicable(
            "on the management cluster, the controller of external objects deletes the resource: test_external_steps.py"
        ),
        "paused": NotApplicable("a request cannot be paused; `kubectl delete teardown` takes it back"),
    },
    HelmUninstall: COMMON | {"protection": ProtectedRelease, "uid": UidInRelease},
    ChartPrune: COMMON | {"protection": ProtectedRelease, "uid": UidInRelease, "ownership": OwnershipOfPruned},
}
# In this order they wait for what blocks. A paused cluster hides all others, a protected object those of its release,
# and a custom resource those of later stages.
ORDER = ("paused", "external end", "protection", "unknown value")
ORDER_OF_RELEASE = ("paused", "protection", "external end", "uid", "unknown value")
RELEASES = (HelmUninstall, ChartPrune)
CELLS = [
    pytest.param(way, name, id=f"{way.name}-{name}")
    for way, row in TABLE.items()
    for name, cell in row.items()
    if not isinstance(cell, NotApplicable)
]


def test_every_way_of_deleting_has_a_check_or_a_reason_for_every_rule() -> None:
    for way, row in TABLE.items():
        assert set(row) == set(RULES), way.name
        assert all(cell.reason for cell in row.values() if isinstance(cell, NotApplicable)), way.name


class Outcomes:
    """What each rule found in one run of a way."""

    def __init__(self, way: Way, rules: dict[str, Rule]) -> None:
        self._way = way
        order = ORDER_OF_RELEASE if isinstance(way, RELEASES) else ORDER
        self._rules = {name: rules[name] for name in sorted(rules, key=(*order, *RULES).index)}
        self.failures: dict[str, Exception] = {}

    async def run(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - every rule that has not failed by itself fails with it
            self.failures = dict.fromkeys(self._rules, error) | self.failures

    async def _run(self) -> None:
        way, rules = self._way, self._rules
        async with way.scene():
            async with way.controllers():
                await way.deploy(*(body for rule in rules.values() for body in rule.manifests()))
            await self._each("before")
            await way.delete()
            async with way.controllers():
                for name, rule in rules.items():
                    await self._try(name, rule, "during")
                    await self._try(name, rule, "free")
                try:
                    await way.until_done()
                except Exception as error:
                    error.add_note(await way.status())
                    raise
                await self._each("after")
                await way.finish()

    async def _each(self, phase: str) -> None:
        for name, rule in self._rules.items():
            await self._try(name, rule, phase)

    async def _try(self, name: str, rule: Rule, phase: str) -> None:
        try:
            await getattr(rule, phase)()
        except Exception as error:  # noqa: BLE001 - raised in the test of this rule
            self.failures.setdefault(name, error)

    def check(self, name: str) -> None:
        if error := self.failures.get(name):
            raise error


class Runs:
    """The runs of all ways, each at most once."""

    def __init__(self, plane: Plane, arm: Arm) -> None:
        self._plane = plane
        self._arm = arm
        self._done: dict[type[Way], Outcomes] = {}
        self._namespaces: list[str] = []

    async def of(self, kind: type[Way]) -> Outcomes:
        """The outcomes of a way, which runs now if it did not yet."""
        if kind not in self._done:
            name = await new_namespace(self._plane)
            self._namespaces.append(name)
            way = kind(self._plane, name)
            row = TABLE[kind].items()
            rules = {rule: cell(way, self._arm) for rule, cell in row if not isinstance(cell, NotApplicable)}
            self._done[kind] = found = Outcomes(way, rules)
            await found.run()
        return self._done[kind]

    async def clear(self) -> None:
        client = self._plane.management.client
        for name in self._namespaces:
            await remove_rights(client, name)
            await leave_namespace(client, name)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def runs(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runs]:
    async with azure_objects.served(plane.members[MEMBER].client), Arm() as arm:
        with pytest.MonkeyPatch.context() as patch:
            azure_objects.lead_to(arm, tmp_path_factory.mktemp("azure"), patch)
            made = Runs(plane, arm)
            yield made
            await made.clear()


@pytest.mark.parametrize(("way", "rule"), CELLS)
async def test_each_way_of_deleting_keeps_each_rule(runs: Runs, way: type[Way], rule: str) -> None:
    (await runs.of(way)).check(rule)
