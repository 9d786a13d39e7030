"""Add-ons when something fails: refused objects, sealed inventories, dying managers, members that do not answer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml

from tests.eventually import eventually
from tests.plane.support.addon_site import (
    CONFLICT,
    CREATED,
    FAILED,
    UNCHANGED,
    AddonSite,
    inventory_writes,
    member_by,
    message,
    outcomes,
    writes,
)
from tests.plane.support.objects import new_object
from tests.plane.support.transports import Killed
from unwind.api.names import OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS, VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS
from unwind.api.rights import HOME
from unwind.api.unwind import EntryState
from unwind.deploy.deployment import deploy
from unwind.inventory.inventories import Inventories
from unwind.inventory.writer import SealedError
from unwind.kube.client import Client
from unwind.kube.errors import ApiError, NotFoundError, UnreachableError
from unwind.kube.transport import HttpTransport
from unwind.members.member import Member
from unwind.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from unwind.api.resources import Resource
    from unwind.kube.client import Object
    from unwind.kube.transport import ServerAnswer
    from unwind.local.cluster import LocalCluster


async def test_a_refused_object_is_reported_and_the_others_are_deployed(site: AddonSite) -> None:
    name = f"deny-{site.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!object.metadata.name.startsWith('bad')", "message": "no bad ones"}],
    }
    policy = new_object(VALIDATING_ADMISSION_POLICIES, name, spec=spec)
    selector = {"matchLabels": {"kubernetes.io/metadata.name": site.namespace}}
    binding_spec = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    binding = new_object(VALIDATING_ADMISSION_POLICY_BINDINGS, name, spec=binding_spec)
    made = [
        await site.there.create(VALIDATING_ADMISSION_POLICIES, policy),
        await site.there.create(VALIDATING_ADMISSION_POLICY_BINDINGS, binding),
    ]
    await eventually(lambda: refused_by_policy(site, "bad-probe"), "a policy in effect")
    owner = site.owner()
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "broken", "namespace": site.namespace},
        "spec": {"ports": [{"port": 700000}]},
    }
    ref = await site.source("s", site.config_map("bad"), site.config_map("good"), service)
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"bad": FAILED, "good": CREATED, "broken": FAILED}
    assert "no bad ones" in message(report, "bad")
    assert "700000" in message(report, "broken")
    assert f"ConfigMap {site.namespace}/bad: " in report.trouble
    for resource, one in zip((VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS), made, strict=True):
        await site.there.delete(resource, name, uid=one["metadata"]["uid"])
    await eventually(lambda: admitted(site, "bad-probe"), "a policy that is gone")
    assert outcomes(await site.deploy(owner, ref)) == {"bad": CREATED, "good": UNCHANGED, "broken": FAILED}
    await site.remove(owner)


async def refused_by_policy(site: AddonSite, name: str) -> bool:
    return not await admitted(site, name)


async def admitted(site: AddonSite, name: str) -> bool:
    try:
        await site.there.apply(CONFIG_MAPS, site.config_map(name), dry_run=True)
    except ApiError:
        return False
    return True


async def test_messages_contain_nothing_of_a_secret(site: AddonSite) -> None:
    secret = "hunter-2-two"  # noqa: S105 - of no use
    broken = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "Not A Name " + secret, "namespace": site.namespace},
        "stringData": {"password": secret},
    }
    config_map = site.config_map("it", labels={"a": f"{secret} is no label"})
    text = {"1.yaml": f"password: {secret}: [", "2.yaml": yaml.safe_dump_all([broken, config_map])}
    report = await site.deploy(site.owner(), await site.text("s", text, secret=True))
    assert [result.outcome for result in report.results] == [FAILED, FAILED]
    told = [*report.faults, *(result.message for result in report.results)]
    assert not [item for item in told if secret in item]
    assert "line 1, column" in report.faults[0]


async def test_an_unknown_kind_fails_alone(site: AddonSite) -> None:
    strange = {"apiVersion": "nobody.dev/v1", "kind": "Strange", "metadata": {"name": "it"}}
    report = await site.deploy(site.owner(), await site.source("s", strange, site.config_map("ours")))
    assert outcomes(report) == {"ours": CREATED, "it": FAILED}
    assert "the cluster does not serve Strange of nobody.dev/v1" in message(report, "it")
    assert not report.whole


async def test_an_object_that_is_being_deleted_is_created_again_when_it_is_gone(site: AddonSite) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("old"), site.config_map("known"))
    held = ["example.dev/hold"]
    theirs = await site.put("old", finalizers=held)
    await site.there.delete(CONFIG_MAPS, "old", uid=theirs["metadata"]["uid"], namespace=site.namespace)
    report = await site.deploy(owner, ref)
    assert outcomes(report) == {"old": FAILED, "known": CREATED}
    assert "is being deleted" in message(report, "old")
    await site.there.patch(CONFIG_MAPS, "old", {"metadata": {"finalizers": None}}, namespace=site.namespace)
    await site.there.patch(CONFIG_MAPS, "known", {"metadata": {"finalizers": held}}, namespace=site.namespace)
    uid = (await site.get("known"))["metadata"]["uid"]
    await site.there.delete(CONFIG_MAPS, "known", uid=uid, namespace=site.namespace)
    assert outcomes(await site.deploy(owner, ref)) == {"old": CREATED, "known": FAILED}
    assert (await site.entries(owner))["known"].object.uid == uid
    await site.there.patch(CONFIG_MAPS, "known", {"metadata": {"finalizers": None}}, namespace=site.namespace)
    assert outcomes(await site.deploy(owner, ref)) == {"old": UNCHANGED, "known": CREATED}


async def test_a_sealed_inventory_stops_the_deployment_at_once(site: AddonSite, cluster: LocalCluster) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    await site.inventories.sealed(owner.uid, "teardown-1")
    before = writes(cluster, site.namespace)
    with pytest.raises(SealedError, match="it is being removed by Teardown teardown-1"):
        await site.deploy(owner, await site.source("s", site.config_map("more")))
    assert writes(cluster, site.namespace) == before


async def test_objects_created_while_the_inventory_was_sealed_are_deleted(site: AddonSite) -> None:
    owner = site.owner()
    await site.deploy(owner, await site.source("s", site.config_map("it")))

    class Sealing(Client):
        """Somebody seals the inventory just after an object was made."""

        async def create(self, resource: Resource, body: Object, **more: Any) -> Object:
            made = await super().create(resource, body, **more)
            await site.inventories.sealed(owner.uid, "t")
            return made

    async with Sealing(site.there.connection) as client:
        member = Member(site.member.ref, client, system_uid=site.member.system_uid)
        read = await site.read(await site.source("s", site.config_map("it"), site.config_map("more")))
        async with member:
            with pytest.raises(SealedError):
                await deploy(member, site.inventories, owner, read)
    with pytest.raises(NotFoundError):
        await site.get("more")
    assert await site.get("it")


async def test_an_inventory_is_closed_only_if_it_did_not_change_since_it_was_read(site: AddonSite) -> None:
    owner, inventories = site.owner(), site.inventories
    await site.deploy(owner, await site.source("s", site.config_map("it")))
    read = await inventories.at_hand(owner.uid)
    await site.deploy(owner, await site.source("s", site.config_map("it"), site.config_map("more")))
    assert not await inventories.sealed_as_read(owner.uid, read, "t")
    [now] = read = await inventories.at_hand(owner.uid)
    assert not now.spec.sealed_for
    # One more chunk that nobody knew of says so, too.
    await inventories.extend(now, 1)
    assert not await inventories.sealed_as_read(owner.uid, read, "t")
    first, second = await inventories.at_hand(owner.uid)
    assert (first.spec.sealed_for, second.spec.sealed_for) == ("t", "")
    assert await inventories.sealed_as_read(owner.uid, [first, second], "t")
    assert [item.spec.sealed_for for item in await inventories.at_hand(owner.uid)] == ["t", "t"]
    assert (await inventories.by_owner(site.member.ref.uid))[owner.uid] == await inventories.of(owner.uid)


class Mortal:
    """Requests of one process, which dies over one of them."""

    def __init__(self, dies_at: int, *, after: bool) -> None:
        self.dies_at = dies_at
        self.after = after
        self.requests = 0
        self.dead = False

    @asynccontextmanager
    async def client(self, original: Client) -> AsyncIterator[Client]:
        mortal = self

        class Transport(HttpTransport):
            async def request(self, method: str, target: str, **more: Any) -> ServerAnswer:
                if mortal.dead:
                    raise Killed
                mortal.requests += 1
                dies = mortal.requests == mortal.dies_at
                if dies and not mortal.after:
                    mortal.dead = True
                    raise Killed
                answer = await super().request(method, target, **more)
                if dies or mortal.dead:
                    mortal.dead = True
                    raise Killed
                return answer

        transport = Transport(original.connection, user_agent="mortal")
        async with Client(original.connection, transport=transport) as client:
            yield client


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_deployment_that_dies_at_any_request_is_finished_by_the_next_and_leaves_nothing(
    site: AddonSite, after: bool
) -> None:
    deaths = 0
    while True:
        deaths += 1
        owner = site.owner(f"mortal-{deaths}", adopt=True)
        names = [f"{kind}-{deaths}-{after}".lower() for kind in ("new", "changed", "adopted")]
        new, changed, adopted = names
        theirs = await site.put(adopted)
        await site.deploy(owner, await site.source("s", site.config_map(changed, data={"a": "0", "b": "0"})))
        read = await site.read(await site.source("s", *(site.config_map(name) for name in names)))
        mortal = Mortal(deaths, after=after)
        async with mortal.client(site.own) as here, mortal.client(site.there) as there:
            member = Member(site.member.ref, there, system_uid=site.member.system_uid)
            async with member:
                try:
                    await deploy(member, Inventories(here, namespace=HOME), owner, read)
                except (Killed, BaseExceptionGroup):
                    assert mortal.dead
        if deaths % 2 == 0:
            report = await deploy(site.member, site.inventories, owner, read)
            assert report.complete
            assert {entry.state for entry in (await site.entries(owner)).values()} == {EntryState.CONFIRMED}
            assert (await site.get(changed))["data"] == {"a": "1"}
        await site.remove(owner)
        for name in (new, changed):
            with pytest.raises(NotFoundError):
                await site.get(name)
        left = await site.get(adopted)
        assert left["metadata"]["uid"] == theirs["metadata"]["uid"]
        assert OWNER_LABEL not in (left["metadata"].get("labels") or {})
        if not mortal.dead:
            break
    assert deaths > 10


@pytest.mark.timeout(300)
@pytest.mark.soak
async def test_five_thousand_objects_cost_a_handful_of_inventory_writes(site: AddonSite) -> None:
    owner = site.owner()
    refs = []
    for part in range(5):
        manifests = [site.config_map(f"it-{part}-{number}") for number in range(1000)]
        refs.append(
            await site.text(
                f"s-{part}",
                {"all.yaml": msgspec.json.encode({"kind": "List", "apiVersion": "v1", "items": manifests}).decode()},
            )
        )
    report = await site.deploy(owner, *refs)
    assert report.counts == {CREATED: 5000}
    assert inventory_writes(site, owner) <= 21
    assert (await site.deploy(owner, *refs)).counts == {UNCHANGED: 5000}
    assert inventory_writes(site, owner) <= 21
    chunks = await site.inventories.of(owner.uid)
    assert [len(chunk.spec.entries) for chunk in chunks] == [500] * 10
    report = await site.deploy(owner, *(await asyncio.gather(*(site.text(f"s-{part}", {}) for part in range(5)))))
    assert len(await site.prune(owner, report)) == 5000
    assert await site.entries(owner) == {}


async def test_an_unreachable_member_ends_the_deployment_and_the_next_one_continues(site: AddonSite) -> None:
    owner = site.owner()
    manifests = [site.config_map(f"it-{number}") for number in range(200)]
    read = await site.read(await site.source("s", *manifests))

    class Counting(Client):
        made = 0

        async def create(self, resource: Resource, body: Object, **more: Any) -> Object:
            found = await super().create(resource, body, **more)
            Counting.made += 1
            if Counting.made == 100:
                proxy.close()
            return found

    async with Proxy(site.there.connection.server) as proxy:
        way = msgspec.structs.replace(site.there.connection, server=proxy.url)
        async with member_by(site, Counting(way)) as member:
            with pytest.raises(UnreachableError):
                await deploy(member, site.inventories, owner, read)
    report = await deploy(site.member, site.inventories, owner, read)
    assert report.complete
    assert report.counts[UNCHANGED] >= 100
    assert {entry.state for entry in (await site.entries(owner)).values()} == {EntryState.CONFIRMED}


async def test_an_unanswered_request_fails_its_object_only(site: AddonSite) -> None:
    class Losing(Client):
        async def create(self, resource: Resource, body: Object, **more: Any) -> Object:
            made = await super().create(resource, body, **more)
            if made["metadata"]["name"] == "lost":
                raise UnreachableError("nothing came back")
            return made

    owner, ref = site.owner(), await site.source("s", site.config_map("lost"), site.config_map("good"))
    async with member_by(site, Losing(site.there.connection)) as member:
        report = await deploy(member, site.inventories, owner, await site.read(ref))
    # It is tried once more, and found to be there with our mark.
    assert outcomes(report) == {"lost": UNCHANGED, "good": CREATED}
    assert (await site.entries(owner))["lost"].state == EntryState.CONFIRMED


async def test_objects_of_a_chart_of_the_same_profile_are_left_to_the_chart(site: AddonSite) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    [chunk] = await site.inventories.of(owner.uid)
    [key] = chunk.spec.entries
    await site.inventories.write(chunk, {key: {"source": "Helm web/release"}})
    before = (await site.get("it"))["metadata"]["resourceVersion"]
    report = await site.deploy(owner, await site.source("s", site.config_map("it", data={"b": "2"})))
    assert outcomes(report) == {"it": CONFLICT}
    assert message(report, "it").startswith("the object is already deployed by Helm web/release of the same profile; ")
    assert (await site.get("it"))["metadata"]["resourceVersion"] == before
    assert await site.prune(owner, await site.deploy(owner, await site.text("s", {}))) == []


async def test_nothing_is_deployed_to_another_cluster_at_the_same_address(site: AddonSite) -> None:
    owner, ref = site.owner(), await site.source("s", site.config_map("it"))
    await site.deploy(owner, ref)
    async with Member(site.member.ref, site.there, system_uid="another") as member:
        with pytest.raises(Exception, match="another cluster answers at the address of Cluster"):
            await deploy(member, site.inventories, owner, await site.read(ref))
