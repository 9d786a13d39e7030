"""Requested deletions of Kustomizations and HelmReleases: what is nested in them, and whether Flux could delete it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unwind.api.names import Reason
from unwind.api.policies import SourceKind
from unwind.companions import flux_reader, flux_tree, snapshots
from unwind.companions.companion import Handle
from unwind.companions.flux import FluxCompanion
from unwind.companions.flux_rules import Place, kubeconfig_secret, resource_of
from unwind.companions.handle_scopes import HandleScope, ScopedHandle, check_same
from unwind.companions.impersonation import Account, may_delete
from unwind.errors import UnwindError
from unwind.removal.deletion_scope import Told

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from unwind.api.meta import ObjectRef
    from unwind.kube.client import Client, Object
    from unwind.members.member import Member
    from unwind.members.targets import ClusterTarget
    from unwind.teardown.step_removers import RemovalDeps


class FluxReader:
    """Kustomizations and HelmReleases, with what is nested in them."""

    def __init__(self, client: Client, deps: RemovalDeps) -> None:
        self._client = client
        self._deps = deps
        self.companion = FluxCompanion(client, trusts_suspended=True)

    async def scope(self, ref: ObjectRef, stack: AsyncExitStack) -> HandleScope:
        here = await stack.enter_async_context(self._deps.members.management())
        root = await flux_reader.get(self._client, Place(ref.kind, ref.namespace, ref.name))
        check_same(ref, root.metadata)
        tree = flux_tree.FluxTree(self.companion, self._deps.members, here)
        await stack.enter_async_context(tree.open)
        await tree.read(root)
        found = list(tree.handles.values())
        if failed := next((it for it in found if it.failed), None):
            raise UnwindError(f"{failed.ref}: {failed.failed}")
        steps = [it.step for it in found]
        if twice := sorted({step for step in steps if steps.count(step) > 1}):
            raise UnwindError(
                f"cannot delete {ref}: {', '.join(twice)} exists on several clusters", remedy="rename one of them"
            )
        refused = await tree.refused() or [told for it in found for told in await _not_allowed(it)]
        return HandleScope(
            handles=tuple(_scoped(it, here) for it in found),
            refused=tuple(refused),
            warnings=(
                *tree.warnings,
                *(f"{claim.object} stays: {snapshots.why_kept(claim)}" for it in found for claim in it.claims),
                *(
                    f"{it.step} lists {ref}, which does not have its labels, and is not removed with it"
                    for it in found
                    for ref in (it.snapshot.foreign if it.snapshot else ())
                ),
            ),
        )

    async def target(self, handle: Object | None, where: ObjectRef | None, place: Member) -> ClusterTarget | None:
        config = flux_tree.kube_config(handle) if handle else None
        if where is None and config is None:
            return None
        if where and (config is None or kubeconfig_secret(config) != where.name):
            config = flux_tree.config_of(where)
        assert config is not None  # noqa: S101 - for the type checker
        namespace = where.namespace if where else handle["metadata"]["namespace"] if handle else ""
        return await flux_tree.secret_target(self._client, namespace, config, where)


def _scoped(it: flux_tree.TreeHandle, here: Member) -> ScopedHandle:
    assert it.member is not None  # noqa: S101 - only failed handles have none
    assert it.snapshot is not None  # noqa: S101
    handle = Handle(
        ref=it.ref,
        source=SourceKind.FLUX,
        depends_on=tuple(sorted(it.needs)),
        terminating=it.obj.metadata.terminating,
    )
    return ScopedHandle(
        handle=handle,
        metadata=it.obj.metadata,
        place=it.place,
        member=it.member,
        snapshot=it.snapshot,
        here=it.member.system_uid == here.system_uid,
    )


async def _not_allowed(it: flux_tree.TreeHandle) -> list[Told]:
    """The refusal if Flux could not delete a nested handle itself: it impersonates an account that may not do that."""
    parent = it.parent
    if parent is None or not parent.obj.spec.service_account_name:
        return []
    account = Account(parent.ref.namespace, parent.obj.spec.service_account_name)
    ref = it.ref
    if await may_delete(it.place.client, account, resource_of(ref), ref.namespace, ref.name):
        return []
    why = f"{account}, with which Flux applies {parent.ref}, may not delete it; grant it the right"
    return [Told(ref, why, Reason.NO_RIGHT)]
