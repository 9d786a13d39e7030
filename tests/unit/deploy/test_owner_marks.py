"""Whose an object is."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.api.karmada import WORKS
from unwind.api.meta import ObjectMeta, ObjectRef, ref_of
from unwind.api.names import ADOPTED_ANNOTATION, MARKED_ANNOTATIONS, MARKED_LABELS, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS
from unwind.deploy.manifest_sources import Manifest, ManifestSource
from unwind.deploy.owner_marks import Claim, DeploymentOwner, claim, hash_in, seen, with_owner_marks
from unwind.deploy.placements import PlacedObject, place


def owner(uid: str = "u-1", **more: Any) -> DeploymentOwner:
    summary = ObjectRef(kind="ClusterSummary", name="s", uid=uid)
    return DeploymentOwner(object=summary, profile=ObjectRef(kind="ClusterProfile", name="base"), **more)


def placed(**metadata: Any) -> PlacedObject:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", **metadata}}
    source = ManifestSource(kind="ConfigMap", namespace="fleet", name="s", manifests=(Manifest(body, ""),))
    [one] = place([source], [CONFIG_MAPS]).objects.values()
    return one


def live(body: dict[str, Any]) -> dict[str, Any]:
    return {"uid": "x", "resourceVersion": "1", **body["metadata"]}


@pytest.mark.parametrize(
    ("theirs", "ours", "says"), [(100, 99, Claim.WON), (100, 100, Claim.TAKEN), (1, 2, Claim.TAKEN)]
)
def test_the_lower_tier_wins_and_a_tie_keeps_the_owner(theirs: int, ours: int, says: Claim) -> None:
    found = seen(live(with_owner_marks(placed(), owner("u-2", tier=theirs))))
    assert claim(found, owner(tier=ours)) is says
    assert (found.profile, found.tier) == ("ClusterProfile base", theirs)


def test_what_carries_our_mark_is_ours_whatever_its_tier() -> None:
    assert claim(seen(live(with_owner_marks(placed(), owner(tier=1)))), owner(tier=100)) is Claim.OURS


def test_what_carries_no_mark_is_foreign() -> None:
    assert claim(seen({"uid": "x", "resourceVersion": "1"}), owner()) is Claim.FOREIGN


def test_a_tier_that_cannot_be_read_counts_as_the_default() -> None:
    metadata = live(with_owner_marks(placed(), owner("u-2")))
    metadata["annotations"]["projectsveltos.io/owner-tier"] = "first"
    assert claim(seen(metadata), owner(tier=99)) is Claim.WON
    assert claim(seen(metadata), owner(tier=100)) is Claim.TAKEN


def test_every_mark_is_among_those_that_are_taken_off() -> None:
    body = with_owner_marks(placed(), owner(), adopted=True)
    assert set(body["metadata"]["labels"]) <= set(MARKED_LABELS)
    assert set(body["metadata"]["annotations"]) <= set(MARKED_ANNOTATIONS)


def test_the_marks_of_a_manifest_itself_do_not_count() -> None:
    body = with_owner_marks(placed(labels={OWNER_LABEL: "u-9", "app": "a"}), owner())
    assert body["metadata"]["labels"][OWNER_LABEL] == "u-1"
    assert body["metadata"]["labels"]["app"] == "a"


def test_the_hash_changes_with_the_content_and_with_the_marks() -> None:
    hashes = [
        hash_in(with_owner_marks(placed(), owner())),
        hash_in(with_owner_marks(placed(labels={"a": "b"}), owner())),
        hash_in(with_owner_marks(placed(), owner(tier=5))),
        hash_in(with_owner_marks(placed(), owner(), adopted=True)),
    ]
    assert len(set(hashes)) == 4
    assert hash_in(with_owner_marks(placed(), owner())) == hashes[0]
    assert seen(live(with_owner_marks(placed(), owner()))).hash == hashes[0]


def test_an_adopted_object_says_so() -> None:
    assert seen(live(with_owner_marks(placed(), owner(), adopted=True))).adopted
    assert ADOPTED_ANNOTATION not in with_owner_marks(placed(), owner())["metadata"]["annotations"]


def work_owner(uid: str = "w-1", **more: Any) -> DeploymentOwner:
    return DeploymentOwner(object=ref_of(WORKS, ObjectMeta(name="web", namespace="karmada-es-m", uid=uid)), **more)


def test_what_a_work_makes_says_so_in_karmadas_words_and_all_of_them_are_taken_off() -> None:
    body = with_owner_marks(placed(labels={"app": "web"}), work_owner(), adopted=True)
    labels, annotations = body["metadata"]["labels"], body["metadata"]["annotations"]
    assert labels == {"app": "web", OWNER_LABEL: "w-1", "karmada.io/managed": "true"}
    assert annotations["work.karmada.io/name"] == "web"
    assert annotations["work.karmada.io/namespace"] == "karmada-es-m"
    assert set(annotations) <= set(MARKED_ANNOTATIONS)
    found = seen(live(body))
    assert (found.profile, found.is_work, found.hash) == ("Work karmada-es-m/web", True, hash_in(body))


def test_a_work_keeps_what_it_has_made_and_takes_nothing_that_another_has() -> None:
    of_work = seen(live(with_owner_marks(placed(), work_owner())))
    assert claim(of_work, work_owner()) is Claim.OURS
    assert claim(of_work, work_owner("w-2")) is Claim.TAKEN
    assert claim(of_work, owner(tier=1)) is Claim.TAKEN, "whatever the tier of the profile"
    assert claim(seen(live(with_owner_marks(placed(), owner(tier=200)))), work_owner()) is Claim.TAKEN
