"""The profiles that match a cluster and their deployment state, from the caches or from the API server."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from unwind.addons import cluster_summaries, matching, validation
from unwind.addons.caches import SeenProfile
from unwind.addons.matching import ProfileKey, Selection
from unwind.addons.upgrade_rules import AddOn
from unwind.api import names
from unwind.api.sveltos import ClusterSummary, SyncMode
from unwind.kube.decoding import Key
from unwind.members.targets import cluster_key
from unwind.planning.dependency_graph import shortest_cycle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import TypeVar

    from unwind.addons.caches import AddonCaches
    from unwind.kube.client import Client
    from unwind.kube.decoding import View
    from unwind.members.targets import AddonTarget

    T = TypeVar("T")

Seen = tuple[ProfileKey, SeenProfile]


class ProfileState(msgspec.Struct, frozen=True, kw_only=True):
    """A profile that matches a cluster, and its state there."""

    key: ProfileKey
    profile: SeenProfile
    summary: ClusterSummary | None
    """The summary made for this cluster's uid, unless it is terminating."""
    refused: str = ""
    """Why Unwind deploys nothing new of the profile to this cluster."""

    @property
    def carried_out(self) -> bool:
        """Whether the profile is deployed to the cluster."""
        return not self.refused and self.profile.spec.sync_mode != SyncMode.DRY_RUN

    @property
    def add_on(self) -> AddOn:
        """The profile's state as input for the upgrade rules."""
        summary, spec = self.summary, self.profile.spec
        return AddOn(
            profile=str(self.key),
            versions=self.profile.metadata.annotations.get(names.KUBERNETES_VERSIONS_ANNOTATION),
            wanted=tuple(feature.value for feature in cluster_summaries.features(summary.spec.cluster_profile_spec))
            if summary
            else (),
            features=summary.status.feature_summaries if summary else None,
            waits=(summary.status.dependencies or "") if summary else "",
            in_step=summary is None
            or cluster_summaries.kept_in_step(self.key, spec, summary) == summary.spec.cluster_profile_spec,
            refused=self.refused,
            dry_run=spec.sync_mode == SyncMode.DRY_RUN,
        )


def cached(caches: AddonCaches, target: AddonTarget) -> list[ProfileState]:
    """Profile states from the caches, which may be stale."""
    summaries = caches.summaries.cache
    return matching_profiles(
        target, list(caches.all_profiles()), named=lambda name: summaries.get(Key(target.ref.namespace, name))
    )


async def fresh(caches: AddonCaches, client: Client, target: AddonTarget) -> list[ProfileState]:
    """Profile states read from the API server. A profile that cannot be decoded raises: its clusters are unknown."""
    seen: list[Seen] = []
    for informer in (caches.cluster_profiles, caches.profiles):
        resource = informer.view.resource
        namespace = target.ref.namespace if resource.namespaced else None
        seen += [
            (ProfileKey(resource.kind, item.metadata.namespace, item.metadata.name), item)
            for item in await _all(client, informer.view, namespace)
        ]
    summaries = await _all(client, caches.summaries.view, target.ref.namespace)
    return matching_profiles(target, seen, named={summary.metadata.name: summary for summary in summaries}.get)


async def _all(client: Client, view: View[T], namespace: str | None) -> list[T]:
    found: list[T] = []
    pages = client.pages(view.resource, namespace=namespace, accept=view.accept_list)
    async with aclosing(pages):
        async for page in pages:
            found += [view.decode(item) for item in page.items or ()]
    return found


def matching_profiles(
    target: AddonTarget, profiles: Sequence[Seen], *, named: Callable[[str], ClusterSummary | None]
) -> list[ProfileState]:
    """The profiles that match a cluster (pure). `named`: looks up a summary by name in the cluster's namespace."""
    cluster = cluster_key(target)
    found: list[ProfileState] = []
    for key, profile in profiles:
        selected = matching.selection(key, profile.spec, target, profile.unread)
        if profile.metadata.terminating or selected is Selection.NO:
            continue
        taken = named(cluster_summaries.name_of(key, target))
        own = taken and cluster_summaries.profile_of(taken) == key and cluster_summaries.cluster_of(taken) == cluster
        summary = taken if taken and own and _is_of(taken, target) and not taken.metadata.terminating else None
        refused = _refused(key, profile, profiles)
        if selected is Selection.UNKNOWN:
            if summary is None:
                continue  # it has nothing on the cluster, and gets nothing
            refused = "; ".join(matching.not_understood(key, profile.spec, profile.unread))
        if taken and not own:
            refused = (
                f"the name of its ClusterSummary is in use by {cluster_summaries.profile_of(taken)}; rename one of"
                " the profiles"
            )
        found.append(ProfileState(key=key, profile=profile, summary=summary, refused=refused))
    return sorted(found, key=lambda profile: profile.key)


def _is_of(summary: ClusterSummary, target: AddonTarget) -> bool:
    """Whether a summary was made for this cluster, not for an earlier one of the same name."""
    # A summary without the annotation was created by Sveltos before Unwind took over.
    return summary.metadata.annotations.get(names.CLUSTER_UID_ANNOTATION) in (None, target.ref.uid)


def _refused(key: ProfileKey, profile: SeenProfile, everyone: Iterable[Seen]) -> str:
    objections = validation.objections(key, profile.spec, profile.unread)
    cycle = None
    if profile.spec.depends_on:
        needs: dict[str, Collection[str]] = {
            other.name: one.spec.depends_on
            for other, one in everyone
            if (other.kind, other.namespace) == (key.kind, key.namespace)
        }
        cycle = shortest_cycle(needs, key.name)
    return str(validation.HeldProfile(objections=objections, cycle=cycle)) if objections.any or cycle else ""
