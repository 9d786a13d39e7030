"""Random clusters with add-ons: every rule that decides whether an object goes or stays occurs in one of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tests.plane.support import objects
from tests.plane.support.removals import stateful_set, until_served
from unwind.api.meta import ObjectRef
from unwind.api.names import (
    DELETE_POLICY_ANNOTATION,
    DELETE_PROTECTION_LABEL,
    OWNER_LABEL,
    SVELTOS_PAUSED_ANNOTATION,
    TAKE_ALONG_ANNOTATION,
    VOLUMES_ANNOTATION,
)
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    STATEFUL_SETS,
    Resource,
)
from unwind.api.sveltos import CLUSTER_PROFILES
from unwind.api.unwind import Entry, EntryState
from unwind.kube.object_watch import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.plane.support.cluster_teardowns import TeardownScene
    from unwind.kube.client import Object

BEHAVIOURS = ("EnforceRemovePolicies", "EnforceRemovePolicies", "RemovePolicies", "LeavePolicies")
SKIP = {DELETE_POLICY_ANNOTATION: "skip"}


class Addon:
    """One add-on of a scene, while it is made."""

    def __init__(self, name: str, ref: ObjectRef) -> None:
        self.name = name
        self.ref = ref
        self.room = ""
        """Its own Namespace."""
        self.entries: dict[str, Entry] = {}


class PlanScene:
    """A cluster with add-ons, made from a seed. `rule` occurs in it for certain."""

    def __init__(self, scene: TeardownScene, seed: int, rule: str = "") -> None:
        self.scene = scene
        self.client = scene.member.client
        self.chance = random.Random(seed)
        self.forced = rule
        self.rules: set[str] = set()
        """The rules that occur in it."""
        self.paused: dict[str, str] = {}
        """The uids of paused profiles, and their names."""
        self.everything: dict[str, tuple[Resource, ObjectRef]] = {}
        """All objects that this scene created on the member and did not delete, by uid."""
        self.children: dict[str, str] = {}
        """Objects that the garbage collector deletes: their uids, and those of their owners."""
        self.resources: dict[str, str] = {}
        """Custom resources: their uids, and the uids of their CRDs."""
        self.addons: list[Addon] = []
        self._names = 0

    async def make(self) -> None:
        count = self.chance.randint(2, 4)
        # The first add-on has no other one.
        forced_in = self.chance.randrange(1 if self.forced in OF_OTHERS else 0, count)
        for number in range(count):
            addon = await self._addon(number)
            self.addons.append(addon)
            await self._namespace(addon)
            for rule in (*self.chance.sample(sorted(RULES), 3), *([self.forced] if number == forced_in else ())):
                if rule in RULES and (rule not in OF_OTHERS or number):
                    await RULES[rule](self, addon)
                    self.rules.add(rule)
        for addon in self.addons:
            await self.scene.record(addon.ref, addon.entries)

    def _called(self, what: str) -> str:
        self._names += 1
        return f"{what}-{self._names}"

    async def _addon(self, number: int) -> Addon:
        behaviour = self.chance.choice(BEHAVIOURS)
        if self.forced in EFFORTS and not number:
            behaviour = self.forced
        others = [addon.name for addon in self.addons]
        needs = tuple(name for name in others if self.chance.random() < 0.4)
        if self.forced == "dependsOn" and others:
            needs = needs or (others[0],)
        annotations: dict[str, str] = {}
        if self.chance.random() < 0.2 or self.forced == "take-along":
            annotations[TAKE_ALONG_ANNOTATION] = "true"
            self.rules.add("take-along")
        if self.chance.random() < 0.3 or self.forced == "volumes-deleted":
            annotations[VOLUMES_ANNOTATION] = "Delete"
            self.rules.add("volumes-deleted")
        paused = self.chance.random() < 0.1 or (self.forced == "paused" and not number)
        if paused:
            annotations[SVELTOS_PAUSED_ANNOTATION] = "true"
            self.rules.add("paused")
        self.rules.add(behaviour)
        if needs:
            self.rules.add("dependsOn")
        name = f"addon-{number}"
        ref = await self.scene.add_summary(name, behaviour=behaviour, depends_on=needs, annotations=annotations)
        if paused:
            profile = await self.scene.client.get(CLUSTER_PROFILES, self.scene.profile(name))
            self.paused[profile["metadata"]["uid"]] = profile["metadata"]["name"]
        return Addon(name, ref)

    async def _namespace(self, addon: Addon) -> None:
        metadata: dict[str, Any] = {}
        if self.chance.random() < 0.1 or self.forced == "namespace-policy":
            metadata["annotations"] = SKIP
            self.rules.add("namespace-policy")
        for rule, value in (("protected-namespace", "Always"), ("cascading-namespace", "Cascading")):
            if self.forced == rule or (not self.forced and self.chance.random() < 0.05):
                metadata["labels"] = {DELETE_PROTECTION_LABEL: value}
                self.rules.add(rule)
        addon.room = self.scene.namespace_of(addon.name)
        await self.put(addon, NAMESPACES, {"metadata": {"name": addon.room, **metadata}})
        await self.config_map(addon, addon.room)
        if self.forced == "cascading-namespace":
            # Its Pod counts when the plan is made, and is gone when the Namespace is deleted.
            await self.deployment(addon, addon.room)

    # Objects

    async def create(self, resource: Resource, body: Object, *, labels: dict[str, str] | None = None) -> ObjectRef:
        metadata = body["metadata"] | {"labels": (labels or {}) | (body["metadata"].get("labels") or {})}
        made = await self.client.create(
            resource, {"apiVersion": resource.api_version, "kind": resource.kind, **body, "metadata": metadata}
        )
        ref = objects.ref(resource, made)
        self.everything[ref.uid] = (resource, ref)
        return ref

    async def put(self, addon: Addon, resource: Resource, body: Object, **entry: Any) -> ObjectRef:
        """An object of an add-on, with its entry in the inventory."""
        ref = await self.create(resource, body, labels={OWNER_LABEL: addon.ref.uid})
        given: dict[str, Any] = {"state": EntryState.CONFIRMED.value} | entry
        addon.entries[f"e-{len(addon.entries)}"] = Entry(object=ref, resource=resource.plural, **given)
        return ref

    async def config_map(self, addon: Addon, namespace: str, *, entry: Any = None, **metadata: Any) -> ObjectRef:
        body = {"metadata": {"name": self._called("cm"), "namespace": namespace, **metadata}}
        return await self.put(addon, CONFIG_MAPS, body, **(entry or {}))

    async def deployment(self, addon: Addon, namespace: str, **metadata: Any) -> ObjectRef:
        """A Deployment with a Pod, which stays Pending."""
        name = self._called("web")
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "web", "image": "web"}], "terminationGracePeriodSeconds": 0},
        }
        spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
        ref = await self.put(
            addon, DEPLOYMENTS, {"metadata": {"name": name, "namespace": namespace, **metadata}, "spec": spec}
        )
        await until(
            self.client,
            DEPLOYMENTS,
            name,
            lambda it: it is not None and bool((it.get("status") or {}).get("replicas")),
            "with a Pod",
            namespace=namespace,
        )
        return ref

    async def foreign(self, namespace: str, **metadata: Any) -> ObjectRef:
        body = {"metadata": {"name": self._called("theirs"), "namespace": namespace, **metadata}}
        return await self.create(CONFIG_MAPS, body)

    async def forget(self, resource: Resource, ref: ObjectRef) -> None:
        """Delete an object before the teardown."""
        await self.client.delete(resource, ref.name, uid=ref.uid, namespace=ref.namespace or None)
        del self.everything[ref.uid]


async def _foreign_content(it: PlanScene, addon: Addon) -> None:
    await it.foreign(addon.room)


async def _shared_namespace(it: PlanScene, addon: Addon) -> None:
    await it.config_map(addon, it.scene.on_member)


async def _in_a_namespace_of_another_addon(it: PlanScene, addon: Addon) -> None:
    await it.config_map(addon, it.chance.choice([other for other in it.addons if other is not addon]).room)


async def _object_policy(it: PlanScene, addon: Addon) -> None:
    await it.config_map(addon, it.scene.on_member, annotations=SKIP)
    if it.chance.random() < 0.3:
        await it.config_map(addon, addon.room, annotations=SKIP)


async def _owned(it: PlanScene, addon: Addon) -> None:
    owner = await it.config_map(addon, addon.room)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name, "uid": owner.uid}
    child = await it.foreign(addon.room, ownerReferences=[reference])
    it.children[child.uid] = owner.uid


async def _already_gone(it: PlanScene, addon: Addon) -> None:
    await it.forget(CONFIG_MAPS, await it.config_map(addon, it.scene.on_member))


async def _created_again(it: PlanScene, addon: Addon) -> None:
    room = it.chance.choice([it.scene.on_member, addon.room])
    ref = await it.config_map(addon, room)
    await it.forget(CONFIG_MAPS, ref)
    await it.create(CONFIG_MAPS, {"metadata": {"name": ref.name, "namespace": room}})


async def _adopted(it: PlanScene, addon: Addon) -> None:
    room = it.chance.choice([it.scene.on_member, addon.room])
    await it.config_map(addon, room, entry={"adopted": True})


async def _kept_entry(it: PlanScene, addon: Addon) -> None:
    await it.config_map(addon, it.scene.on_member, entry={"kept": True})


async def _taken_over(it: PlanScene, addon: Addon) -> None:
    await it.config_map(addon, it.scene.on_member, labels={OWNER_LABEL: "another-owner"})


async def _intended(it: PlanScene, addon: Addon) -> None:
    """The creation of objects was interrupted: one was created, one was not, one exists and is foreign."""
    state = {"state": EntryState.INTENDED.value}
    created = await it.config_map(addon, it.scene.on_member, entry=state)
    missing = await it.config_map(addon, it.scene.on_member, entry=state)
    await it.forget(CONFIG_MAPS, missing)
    theirs = await it.foreign(it.scene.on_member)
    for ref in (created, missing, theirs):
        new = f"e-{len(addon.entries)}"
        key = next((key for key, entry in addon.entries.items() if entry.object.uid == ref.uid), new)
        without = ObjectRef(version="v1", kind="ConfigMap", namespace=ref.namespace, name=ref.name)
        addon.entries[key] = Entry(object=without, resource="configmaps", state=EntryState.INTENDED.value)


async def _definition(it: PlanScene, addon: Addon, *, foreign: bool) -> None:
    group = f"g{it.chance.randrange(10**8)}.dev"
    names = {"kind": "Gadget", "plural": "gadgets", "singular": "gadget", "listKind": "GadgetList"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    definition = await it.put(
        addon, CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": f"gadgets.{group}"}, "spec": spec}
    )
    gadgets = Resource(group, "v1", "gadgets", "Gadget")
    await until_served(it.client, gadgets)
    ours = await it.put(addon, gadgets, {"metadata": {"name": "ours", "namespace": addon.room}})
    it.resources[ours.uid] = definition.uid
    if foreign:
        room = it.chance.choice([it.scene.on_member, addon.room])
        theirs = await it.create(gadgets, {"metadata": {"name": "theirs", "namespace": room}})
        it.resources[theirs.uid] = definition.uid


async def _own_definition(it: PlanScene, addon: Addon) -> None:
    await _definition(it, addon, foreign=False)


async def _definition_with_foreign_resources(it: PlanScene, addon: Addon) -> None:
    await _definition(it, addon, foreign=True)


async def _claims(it: PlanScene, addon: Addon, **metadata: Any) -> None:
    """A StatefulSet without Pods, with a claim of an earlier Pod and a foreign one that only has such a name."""
    room = it.chance.choice([it.scene.on_member, addon.room])
    name = it._called("db")
    body = stateful_set(room, name, replicas=0)
    await it.put(addon, STATEFUL_SETS, body | {"metadata": body["metadata"] | metadata})
    claim = body["spec"]["volumeClaimTemplates"][0]["spec"]
    for number, labels in enumerate(({"app": name}, {})):
        metadata = {"name": f"data-{name}-{number}", "namespace": room, "labels": labels}
        await it.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": metadata, "spec": claim})


async def _claims_of_a_kept_set(it: PlanScene, addon: Addon) -> None:
    await _claims(it, addon, annotations=SKIP)


async def _protected(it: PlanScene, addon: Addon) -> None:
    room = it.chance.choice([it.scene.on_member, addon.room])
    await it.config_map(addon, room, labels={DELETE_PROTECTION_LABEL: "Always"})


async def _protected_workload(it: PlanScene, addon: Addon) -> None:
    """A Deployment with replicas: `Cascading` protects it."""
    await it.deployment(addon, addon.room, labels={DELETE_PROTECTION_LABEL: "Cascading"})


RULES: dict[str, Callable[[PlanScene, Addon], Awaitable[None]]] = {
    "foreign-content": _foreign_content,
    "shared-namespace": _shared_namespace,
    "in-a-namespace-of-another-addon": _in_a_namespace_of_another_addon,
    "object-policy": _object_policy,
    "owned": _owned,
    "already-gone": _already_gone,
    "created-again": _created_again,
    "adopted": _adopted,
    "kept-entry": _kept_entry,
    "taken-over": _taken_over,
    "intended": _intended,
    "own-definition": _own_definition,
    "foreign-resources": _definition_with_foreign_resources,
    "claims": _claims,
    "claims-of-a-kept-set": _claims_of_a_kept_set,
    "protected": _protected,
    "protected-workload": _protected_workload,
}
OF_OTHERS = frozenset({"in-a-namespace-of-another-addon"})
"""The rules that need an add-on that was made before."""
EFFORTS = frozenset(BEHAVIOURS)
EVERY_RULE = (
    *RULES,
    *sorted(EFFORTS),
    "dependsOn",
    "paused",
    "take-along",
    "volumes-deleted",
    "namespace-policy",
    "protected-namespace",
    "cascading-namespace",
)
