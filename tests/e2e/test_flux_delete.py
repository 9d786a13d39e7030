"""`unwind delete` of Kustomizations and HelmReleases, with the real controllers of Flux. No cluster is deleted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.plane.support.commands import command
from tests.plane.support.controllers import HOLD
from tests.plane.support.flux_handles import FluxScene, flux_scene
from tests.plane.support.flux_sources import kustomization
from tests.plane.support.handle_requests import handle_manager
from tests.plane.support.requested_deletions import Room, User, own_namespace, user
from unwind.api.flux import DISABLED, HELM_RELEASES, KUSTOMIZATIONS, RECONCILE
from unwind.api.meta import ObjectRef, manifest
from unwind.api.names import DELETE_PROTECTION_LABEL, Finalizer
from unwind.api.policies import SourceKind
from unwind.api.resources import CONFIG_MAPS, SERVICE_ACCOUNTS
from unwind.api.rights import Right
from unwind.api.unwind import TEARDOWNS, Phase, Teardown
from unwind.clock import SYSTEM
from unwind.inventory.inventories import Inventories
from unwind.kube.errors import ApiError
from unwind.kube.object_watch import until, until_absent
from unwind.teardown.requests import request_manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from unwind.local.plane import Plane

ASKING = {"apiGroups": ["unwind.dev"], "resources": ["teardowns"], "verbs": ["create", "get", "list", "watch"]}
# What Flux deploys on the management cluster itself is verified there.
READING = Right("", ("configmaps",), ("get", "list", "watch"), why="A test.")


pytestmark = pytest.mark.usefixtures("kustomize_controller")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(plane: Plane) -> AsyncIterator[str]:
    """Unwind's own namespace, with the policies of that manager."""
    async with own_namespace(plane, "unwind-handles", READING) as name:
        yield name


class DeleteScene:
    """Handles of Flux, and the commands of a user."""

    def __init__(self, it: FluxScene, home: str) -> None:
        self.it = it
        self.home = home
        self.namespace = it.cluster.namespace
        self.client = it.client

    def manager(self, **more: Any) -> Any:
        return handle_manager(self.client, self.home, sources=(SourceKind.FLUX,), **more)

    async def run(self, *arguments: str) -> Any:
        home = () if arguments[0] in ("cancel", "why", "status") else ("--unwind-namespace", self.home)
        return await command(self.it.cluster.management, *arguments, "-n", self.namespace, *home)

    async def teardown(self, name: str, state: Callable[[Teardown], bool], called: str) -> Teardown:
        """The Teardown of a Kustomization, as soon as it is so."""
        handle = await self.it.handle(name)
        assert handle
        return await self.request(f"request-{handle['metadata']['uid']}", state, called)

    async def request(self, name: str, state: Callable[[Teardown], bool], called: str) -> Teardown:
        def look(found: Any) -> bool:
            return found is not None and state(msgspec.convert(found, Teardown))

        return msgspec.convert(await until(self.client, TEARDOWNS, name, look, called), Teardown)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(plane: Plane, namespace: str, home: str) -> AsyncIterator[DeleteScene]:
    async with flux_scene(plane, namespace) as made:
        yield DeleteScene(made, home)


def held_at(name: str, *words: str) -> Callable[[Teardown], bool]:
    """Whether a Teardown is held at the object of this name, with these words, and says who must act."""

    def held(one: Teardown) -> bool:
        return any(
            item.object.name == name and item.actor and all(word in item.message for word in words)
            for item in one.status.blockers
        )

    return held


def waves(teardown: Teardown) -> dict[str, int]:
    assert teardown.spec.plan
    return {step.name: step.wave for step in teardown.spec.plan.steps}


async def uid_of(scene: DeleteScene, name: str) -> str:
    handle = await scene.it.handle(name)
    assert handle
    return str(handle["metadata"]["uid"])


async def nested(scene: DeleteScene, *held: str, infra: bool = False) -> None:
    """`fleet` deploys `base` and `apps` on the management cluster, and these deploy on the member. `apps` depends on
    `base`. `held`: objects of `apps` with a finalizer. `infra`: whether `apps` depends on `infra` instead, which
    contains `base`."""
    it, namespace = scene.it, scene.namespace
    await it.sources.source("base", [it.config_map("base-0")])
    objects = [it.config_map(name, finalizers=[HOLD]) for name in held]
    await it.sources.source("apps", [it.config_map("apps-0"), *objects])
    base = kustomization("base", namespace, secret=it.secret)
    apps = kustomization("apps", namespace, secret=it.secret, depends_on=["infra" if infra else "base"])
    await it.sources.source("infra", [base])
    await it.sources.kustomization("fleet", [kustomization("infra", namespace) if infra else base, apps])
    await it.sources.until_ready("fleet", "base", "apps")


async def test_a_kustomization_goes_after_what_is_nested_in_it_and_every_object_is_verified(scene: DeleteScene) -> None:
    it, namespace = scene.it, scene.namespace
    await nested(scene, "held", infra=True)
    planned = await scene.run("plan", "kustomization/fleet", "-o", "json")
    assert planned.code == 0, planned.err
    seen = json.loads(planned.out)
    # Without a manager, and without a question.
    dry = await scene.run("delete", "kustomization/fleet", "--dry-run", "-o", "json")
    assert (dry.code, json.loads(dry.out)) == (0, seen), dry.err
    few = await scene.run("delete", "kustomization/fleet", "--dry-run", "--max-objects", "2")
    assert (few.code, "more than --max-objects 2" in few.err) == (1, True)
    async with scene.manager():
        assert await scene.client.list(TEARDOWNS, fields=f"metadata.name=request-{await uid_of(scene, 'fleet')}") == []
        asked = await scene.run("delete", "kustomization/fleet", "--yes", "--no-wait")
        assert asked.code == 0, asked.err
        teardown = await scene.teardown("fleet", held_at("held", HOLD), "held at an object on the member")
        # The command showed what happens.
        assert waves(teardown) == {step["name"]: step["wave"] for step in seen["plan"]["steps"]}
        assert waves(teardown) == {
            f"Kustomization/{namespace}/{name}": n for n, name in enumerate(("apps", "base", "infra", "fleet"), 1)
        }
        apps = await it.handle("apps")
        assert apps
        # Flux has let go of it: Unwind has not.
        assert apps["metadata"]["finalizers"] == [Finalizer.HANDLE.value]
        assert await it.cluster.objects() == {"held", "base-0"}
        status = await scene.run("status", "fleet")
        assert HOLD in status.out, status.out + status.err
        why = await scene.run("why", "kustomization/apps")
        assert HOLD in why.out, why.out + why.err
    # Another manager continues.
    async with scene.manager():
        await it.free("held")
        ended = await scene.request(teardown.metadata.name, lambda one: one.finished, "finished")
        assert (ended.phase, ended.status.left) == (Phase.COMPLETE, 0)
        assert await it.cluster.objects() == set()
        assert await scene.client.list(KUSTOMIZATIONS, namespace=namespace) == []
        order = it.cluster.deleted()
        assert max(order.index(name) for name in ("apps-0", "held")) < order.index("base-0")
        uids = [step.object.uid for step in ended.spec.plan.steps] if ended.spec.plan else []
        inventories = Inventories(scene.client, namespace=scene.home)

        async def discarded() -> bool:
            return await inventories.owned(uids) == []

        await eventually(discarded, "the records of objects that are gone are discarded")
    # The manager deleted handles only, on the management cluster. Flux did the rest.
    ours = [
        entry.object_ref.name
        for entry in it.cluster.member.audit.deletions(namespace=it.cluster.on_member)
        if entry.user_agent.startswith("unwind")
    ]
    assert ours == []


async def test_a_handle_that_its_parent_would_create_again_is_removed_and_waits_for_the_parent(
    scene: DeleteScene,
) -> None:
    it, namespace = scene.it, scene.namespace
    await nested(scene)
    async with scene.manager():
        seen = await scene.run("plan", "kustomization/apps")
        assert f"Kustomization {namespace}/fleet would create" in " ".join(seen.out.split())
        await scene.run("delete", "kustomization/apps", "--yes", "--no-wait")
        held = await scene.teardown("apps", held_at("apps", f"{namespace}/fleet would create it again"), "held")
        assert await it.cluster.objects() == {"base-0"}
        fleet = await it.handle("fleet")
        assert fleet
        assert "suspend" not in fleet["spec"], "Unwind suspends nothing"
        # The user removes it from its source, and Flux prunes it.
        await it.sources.source("fleet", [kustomization("base", namespace, secret=it.secret)])
        ended = await scene.request(held.metadata.name, lambda one: one.finished, "finished")
    assert ended.phase is Phase.COMPLETE
    await until_absent(scene.client, KUSTOMIZATIONS, "apps", namespace=namespace)


async def test_a_handle_whose_parent_is_suspended_goes_at_once(scene: DeleteScene) -> None:
    await nested(scene)
    patch = {"spec": {"suspend": True}}
    await scene.client.patch(KUSTOMIZATIONS, "fleet", patch, namespace=scene.namespace)
    async with scene.manager():
        done = await scene.run("delete", "kustomization/apps", "--yes")
    assert done.code == 0, done.err
    assert "is gone" in done.err + done.out
    assert await scene.it.cluster.objects() == {"base-0"}


@pytest.mark.parametrize("why", ["suspended", "needed", "protected", "protected itself"])
async def test_what_must_stay_refuses_the_deletion_before_anything_is_deleted(scene: DeleteScene, why: str) -> None:
    it, namespace = scene.it, scene.namespace
    await it.kustomization("base", "base-0")
    target, words = (
        "base",
        {
            "suspended": "is suspended",
            "needed": f"Kustomization {namespace}/apps: depends on Kustomization/{namespace}/base",
            "protected": "base-0",
            "protected itself": "unwind unprotect kustomizations.kustomize.toolkit.fluxcd.io/base",
        },
    )
    if why == "needed":
        await it.kustomization("apps", "apps-0", depends_on=["base"])
        await it.sources.until_ready("apps")
    await it.sources.until_ready("base")
    if why == "suspended":
        await scene.client.patch(KUSTOMIZATIONS, "base", {"spec": {"suspend": True}}, namespace=namespace)
    if why == "protected":
        label = {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}
        await it.cluster.member.client.patch(CONFIG_MAPS, "base-0", label, namespace=it.cluster.on_member)
    if why == "protected itself":
        await scene.client.patch(
            KUSTOMIZATIONS, "base", {"metadata": {"labels": {DELETE_PROTECTION_LABEL: "Always"}}}, namespace=namespace
        )
    planned = await scene.run("plan", f"kustomization/{target}")
    assert words[why] in " ".join(planned.out.split())
    assert "Refused, nothing would be deleted" in planned.out
    async with scene.manager():
        for option in ("--dry-run", "--yes"):
            refused = await scene.run("delete", f"kustomization/{target}", option)
            assert refused.code == 1
            assert words[why] in " ".join(refused.err.split())
        # The manager refuses it as well.
        found = await it.handle("base")
        assert found
        asked = await scene.client.create(TEARDOWNS, body("admin", found))
        ended = await scene.request(asked["metadata"]["name"], lambda one: one.finished, "finished")
        assert ended.phase is Phase.REFUSED
        assert words[why] in ended.status.blocked_by
    assert "base-0" in await it.cluster.objects()
    assert "deletionTimestamp" not in (await it.handle("base") or {})["metadata"]


def body(by: str, found: Any) -> dict[str, Any]:
    meta = found["metadata"]
    ref = ObjectRef(
        group=KUSTOMIZATIONS.group,
        version=KUSTOMIZATIONS.version,
        kind=KUSTOMIZATIONS.kind,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
    )
    made = request_manifest(ref, name=f"request-{ref.uid}", by=by, plural="kustomizations", now=SYSTEM.now())
    return manifest(TEARDOWNS, made)


def rights(*verbs: str) -> list[dict[str, Any]]:
    return [{"apiGroups": [KUSTOMIZATIONS.group], "resources": ["kustomizations"], "verbs": list(verbs)}]


def known(scene: DeleteScene, plane: Plane, name: str, *verbs: str) -> Any:
    """A user with these rights on Kustomizations in the namespace."""
    room = Room(plane.management, scene.home)
    room.name = scene.namespace
    return user(room, name, [ASKING], here=rights(*verbs))


async def test_a_request_needs_the_right_to_delete_and_to_patch_the_handle(plane: Plane, scene: DeleteScene) -> None:
    it = scene.it
    await it.kustomization("apps", "apps-0")
    await it.sources.until_ready("apps")
    found = await it.handle("apps")
    who: User
    async with known(scene, plane, "reader", "get", "patch") as who:
        with pytest.raises(ApiError, match="may not delete Kustomization apps"):
            await who.client.create(TEARDOWNS, body(who.name, found))
    async with known(scene, plane, "deleter", "delete") as who:
        with pytest.raises(ApiError, match="may not patch Kustomization apps"):
            await who.client.create(TEARDOWNS, body(who.name, found))
    async with known(scene, plane, "owner", "delete", "patch") as who, scene.manager():
        asked = await who.client.create(TEARDOWNS, body(who.name, found))
        ended = await scene.request(asked["metadata"]["name"], lambda one: one.finished, "finished")
    assert ended.phase is Phase.COMPLETE
    assert await it.cluster.objects() == set()


async def test_a_nested_handle_that_flux_may_not_delete_itself_is_not_deleted_for_a_request(
    plane: Plane, scene: DeleteScene
) -> None:
    """Flux impersonates an account that has lost the right to delete Kustomizations: the requester gains nothing."""
    it, namespace = scene.it, scene.namespace
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant", "namespace": namespace}}
    await scene.client.create(SERVICE_ACCOUNTS, account)
    await nested(scene)
    patch = {"spec": {"serviceAccountName": "tenant", "suspend": False}}
    await scene.client.patch(KUSTOMIZATIONS, "fleet", patch, namespace=namespace)
    found = await it.handle("fleet")
    async with scene.manager():
        asked = await scene.client.create(TEARDOWNS, body("admin", found))
        ended = await scene.request(asked["metadata"]["name"], lambda one: one.finished, "finished")
    assert ended.phase is Phase.REFUSED
    assert f"system:serviceaccount:{namespace}:tenant" in ended.status.blocked_by
    assert await it.cluster.objects() == {"apps-0", "base-0"}


async def test_a_cancelled_deletion_lets_go_of_the_handles_and_says_what_is_gone(scene: DeleteScene) -> None:
    it, namespace = scene.it, scene.namespace
    await nested(scene, "held")
    async with scene.manager():
        await scene.run("delete", "kustomization/fleet", "--yes", "--no-wait")
        running = await scene.teardown("fleet", held_at("held"), "held at an object")
        # As a manager leaves it that is killed between its patch and its DELETE.
        fleet = await it.handle("fleet")
        assert fleet
        held = {"finalizers": [*fleet["metadata"]["finalizers"], Finalizer.HANDLE.value]}
        patch = {"metadata": {**held, "annotations": {RECONCILE: DISABLED}}}
        await scene.client.revise(KUSTOMIZATIONS, fleet, patch)
        done = await scene.run("cancel", "fleet")
        assert done.code == 0, done.err
        told = " ".join((done.out + done.err).split())
        assert f"deletion of Kustomization {namespace}/fleet cancelled: 2 of 6 objects are gone" in told
        assert f"ConfigMap {it.cluster.on_member}/held" in told
        await until_absent(scene.client, TEARDOWNS, running.metadata.name)
        # Flux was done with `apps`, so it is gone. The others are as they were.
        fleet = await it.handle("fleet")
        assert fleet
        assert Finalizer.HANDLE not in fleet["metadata"]["finalizers"]
        assert (fleet["metadata"].get("annotations") or {}).get(RECONCILE) != DISABLED
    assert "base-0" in await it.cluster.objects()
    await it.free("held")


@pytest.mark.usefixtures("helm_controller")
async def test_what_helm_keeps_of_a_helm_release_is_in_the_ledger(scene: DeleteScene) -> None:
    it = scene.it
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {}\n  {}\n"
    kept = "annotations: {helm.sh/resource-policy: keep}"
    chart = {"templates/web.yaml": text.format("web", ""), "templates/data.yaml": text.format("data", kept)}
    await it.sources.helm_release("db", chart, secret=it.secret, target=it.cluster.on_member)
    await it.sources.until_ready("db", resource=HELM_RELEASES)
    async with scene.manager():
        done = await scene.run("delete", "helmrelease/db", "--yes", "-o", "json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["gone"]
    assert [(left["object"]["name"], "keep" in left["message"]) for left in told["left"]] == [("data", True)]
    assert await it.cluster.objects() == {"data"}


async def test_a_manager_without_the_feature_refuses(scene: DeleteScene) -> None:
    await scene.it.kustomization("apps", "apps-0")
    await scene.it.sources.until_ready("apps")
    async with scene.manager(features=()):
        refused = await scene.run("delete", "kustomization/apps", "--yes")
    assert refused.code == 1
    assert "the feature flux is not installed" in refused.err
    assert await scene.it.cluster.objects() == {"apps-0"}
