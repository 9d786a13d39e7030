"""A Kustomization or HelmRelease with everything nested in it: what its deletion deletes, on which clusters.

`unwind plan` and a requested deletion read the same tree, so that they agree.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from unwind.api.flux import HELM_RELEASES, KUSTOMIZATIONS, HelmRelease, KubeConfig, Kustomization, SecretKey
from unwind.api.meta import ObjectRef
from unwind.api.policies import SourceKind
from unwind.api.resources import SECRETS
from unwind.api.unwind import Entry
from unwind.companions import flux_handles, flux_reader, snapshots
from unwind.companions import flux_rules as rules
from unwind.companions.companion import Handle, step_name
from unwind.companions.flux_order import dropped_warning, nested_order
from unwind.companions.flux_rules import Place
from unwind.companions.snapshots import Snapshot
from unwind.errors import UnwindError, will_retry
from unwind.kube.errors import NotFoundError
from unwind.kube.installed_kinds import is_installed
from unwind.members.member import Member
from unwind.members.targets import ClusterTarget
from unwind.removal.deletion_scope import Told

if TYPE_CHECKING:
    from unwind.companions.flux import FluxCompanion
    from unwind.companions.flux_rules import FluxObject
    from unwind.kube.client import Client, Object
    from unwind.members.members import Members

# A Kustomization can contain Kustomizations that contain others; more than these are not read.
_HANDLES = 500
# Flux tries these keys of a Secret, in this order.
_KUBECONFIG_KEYS = ("value", "value.yaml")


class TreeHandle(msgspec.Struct, kw_only=True):
    """The root of a tree, or a Kustomization or HelmRelease that is nested in it."""

    obj: Kustomization | HelmRelease
    place: Member
    """The cluster that it is on."""
    needs: set[str] = msgspec.field(default_factory=set)
    """The steps that go after it: what it depends on, what deployed it, and what follows from both."""
    parent: TreeHandle | None = None
    """None for the root."""
    member: Member | None = None
    """The cluster that it deploys on; None if it could not be reached."""
    snapshot: Snapshot | None = None
    claims: list[Entry] = msgspec.field(default_factory=list)
    """The claims of its StatefulSets that stay."""
    failed: str = ""
    """Why it is not known what it deployed; empty if it is."""
    forgotten: str = ""
    """Why Flux would leave what it deployed, although nothing in the handle says so."""

    @property
    def ref(self) -> ObjectRef:
        return rules.reference(self.obj)

    @property
    def step(self) -> str:
        return step_name(self.ref)

    @property
    def held(self) -> str:
        """Why Flux would not remove everything; empty if it would."""
        return flux_handles.why_held(self.obj) or self.forgotten

    @property
    def there(self) -> list[Entry]:
        """What it deployed and still exists."""
        return [entry for entry in self.snapshot.entries.values() if entry.object.uid] if self.snapshot else []


class FluxTree:
    """Reads a handle and what is nested in it. The connections to its clusters last as long as the context `open`."""

    def __init__(self, companion: FluxCompanion, members: Members, here: Member) -> None:
        """`here`: the cluster of the root."""
        self.open = AsyncExitStack()
        self.handles: dict[tuple[str, Place], TreeHandle] = {}
        """By the identity of the cluster that the handle is on; the root first."""
        self.warnings: list[str] = []
        """About the order of the handles."""
        self._parents: dict[tuple[str, Place], set[tuple[str, Place]]] = {}
        """What deployed each handle."""
        self._companion = companion
        self._members = members
        self._here = here
        self._connected: dict[tuple[str, str], Member] = {}
        self._objects: dict[str, snapshots.MemberObjects] = {}

    async def read(self, obj: FluxObject) -> None:
        """Read the tree of a root."""
        await self._read(obj, self._here, parent=None)
        self._order()

    def _order(self) -> None:
        """Determine the order of all handles."""
        names = {key: f"{key[0]}/{it.step}" for key, it in self.handles.items()}
        steps = {names[key]: it.step for key, it in self.handles.items()}
        declared = {
            name: [
                names[key[0], place]
                for place in rules.dependencies(self.handles[key].obj, key[1].kind)
                if (key[0], place) in names
            ]
            for key, name in names.items()
        }
        parents = {name: [names[it] for it in self._parents[key]] for key, name in names.items()}
        order = nested_order(declared, parents)
        for key, it in self.handles.items():
            it.needs = {steps[name] for name in order.needs[names[key]]}
        for group in order.dropped:
            in_it = [steps[name] for name in group]
            self.warnings += [f"{step}: {dropped_warning(step, in_it)}" for step in in_it]

    async def _read(self, obj: FluxObject, place: Member, *, parent: TreeHandle | None) -> None:
        ref = rules.reference(obj)
        key = (place.system_uid, Place(ref.kind, ref.namespace, ref.name))
        above = self._parents.setdefault(key, set())
        if parent:
            above.add((parent.place.system_uid, Place(parent.ref.kind, parent.ref.namespace, parent.ref.name)))
        if key in self.handles:
            return
        found = self.handles[key] = TreeHandle(obj=obj, place=place, parent=parent)
        if len(self.handles) > _HANDLES:
            raise UnwindError(
                f"cannot delete more than {_HANDLES} Kustomizations and HelmReleases at once",
                remedy="delete some of them first",
            )
        try:
            found.member = await self._member_of(obj, place)
            handle = await handle_of(obj, found.member)
            found.forgotten = flux_handles.FORGOTTEN if handle.unknown else ""
            found.snapshot = await self._snapshot(handle, found.member)
            claims = await snapshots.staying_claims(found.member, found.snapshot.entries.values())
            found.claims = list(claims.values())
        except UnwindError as error:
            found.failed = f"cannot read what it deployed: {will_retry(error)}"
            return
        # Flux leaves a child that it keeps, and what that deployed.
        going = [entry.object for entry in found.there if not entry.kept]
        for child in rules.children(key[1], going):
            try:
                await self._read(await flux_reader.get(found.member.client, child), found.member, parent=found)
            except NotFoundError:
                continue  # it is gone by now
            except UnwindError as error:
                found.failed = f"cannot read {flux_handles.step_of(child)}: {will_retry(error)}"

    async def _member_of(self, obj: FluxObject, place: Member) -> Member:
        """The cluster that a handle deploys on."""
        config = obj.spec.kube_config
        if config is None:
            return place
        namespace, secret = obj.metadata.namespace, rules.kubeconfig_secret(config)
        if not secret or place is not self._here:
            raise UnwindError(
                f"{rules.reference(obj)} deploys on another cluster,"
                " whose kubeconfig is not in a Secret of this cluster",
                remedy="request its deletion with a kubeconfig of the cluster that it is on",
            )
        if (namespace, secret) not in self._connected:
            target = await secret_target(place.client, namespace, config)
            opened = await self.open.enter_async_context(self._members.member(target))
            self._connected[namespace, secret] = opened
        return self._connected[namespace, secret]

    async def _snapshot(self, handle: Handle, member: Member) -> Snapshot:
        objects = self._objects.setdefault(member.system_uid, snapshots.MemberObjects(member))
        return await snapshots.take(objects, self._companion, handle)

    async def refused(self) -> list[Told]:
        """Why nothing of the tree may be deleted: Flux would leave objects, or handles outside of it depend on it."""
        tree = list(self.handles.values())
        found = [Told(it.ref, it.held) for it in tree if it.held]
        # Only where the tree is: users of other namespaces must not be able to stop a deletion.
        places = {(it.place.system_uid, it.ref.namespace): it for it in tree}
        for (cluster, namespace), it in sorted(places.items(), key=lambda one: one[0]):
            mine = {key[1] for key in self.handles if key[0] == cluster}
            for resource, kind in ((KUSTOMIZATIONS, Kustomization), (HELM_RELEASES, HelmRelease)):
                if not await is_installed(it.place.client, resource):
                    continue
                listed = await it.place.client.list(resource, namespace=namespace)
                for obj in msgspec.convert(listed, list[kind]):  # type: ignore[valid-type]
                    found += _dependent(obj, mine)
        return found


def _dependent(obj: FluxObject, tree: set[Place]) -> list[Told]:
    """The refusal if an object outside of a tree depends on a handle in it (pure)."""
    ref = rules.reference(obj)
    if obj.metadata.terminating or Place(ref.kind, ref.namespace, ref.name) in tree:
        return []
    needed = [flux_handles.step_of(place) for place in rules.dependencies(obj, ref.kind) if place in tree]
    return [Told(ref, f"depends on {', '.join(needed)}; delete it first")] if needed else []


async def secret_target(
    client: Client, namespace: str, config: KubeConfig, ref: ObjectRef | None = None
) -> ClusterTarget:
    """The cluster that the kubeconfig of a handle leads to. `ref`: its Secret as it was recorded."""
    name, key = rules.kubeconfig_secret(config), config.secret_ref.key if config.secret_ref else ""
    try:
        secret = await client.get(SECRETS, name, namespace=namespace)
    except NotFoundError:
        raise UnwindError(
            f"cannot connect to a cluster: Secret {namespace}/{name} with its kubeconfig not found",
            remedy="create the Secret",
        ) from None
    if not key:
        key = next((item for item in _KUBECONFIG_KEYS if item in (secret.get("data") or {})), "")
    ref = ref or ObjectRef(
        version="v1", kind=SECRETS.kind, namespace=namespace, name=name, uid=secret["metadata"]["uid"]
    )
    return ClusterTarget(ref=ref, secret=name, secret_namespace=namespace, secret_key=key)


def kube_config(handle: Object) -> KubeConfig | None:
    """The `spec.kubeConfig` of a handle (pure)."""
    found = handle["spec"].get("kubeConfig")
    return msgspec.convert(found, KubeConfig) if found else None


def config_of(secret: ObjectRef) -> KubeConfig:
    """The configuration that names a Secret (pure)."""
    return KubeConfig(secret_ref=SecretKey(name=secret.name))


async def handle_of(obj: FluxObject, member: Member) -> Handle:
    """A handle with what it deployed."""
    found = await flux_reader.found_handle(obj, member)
    return Handle(
        ref=rules.reference(obj),
        source=SourceKind.FLUX,
        entries=found.entries,
        terminating=obj.metadata.terminating,
        unknown=f"it {flux_handles.FORGOTTEN}" if found.forgotten else "",
    )
