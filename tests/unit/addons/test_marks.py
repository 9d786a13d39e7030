"""Whose an object is."""

from __future__ import annotations

from typing import Any

import pytest

from unwind.addons.manifests import Manifest
from unwind.addons.marks import Claim, Owner, claim, hash_in, marked, seen
from unwind.addons.placing import Placed, place
from unwind.addons.sources import Source
from unwind.api.meta import ObjectRef
from unwind.api.names import ADOPTED_ANNOTATION, MARKED_ANNOTATIONS, MARKED_LABELS, OWNER_LABEL
from unwind.api.resources import CONFIG_MAPS


def owner(uid: str = "u-1", **more: Any) -> Owner:
    summary = ObjectRef(kind="ClusterSummary", name="s", uid=uid)
    return Owner(summary=summary, profile=ObjectRef(kind="ClusterProfile", name="base"), **more)


def placed(**metadata: Any) -> Placed:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", **metadata}}
    source = Source(kind="ConfigMap", namespace="fleet", name="s", manifests=(Manifest(body, ""),))
    [one] = place([source], [CONFIG_MAPS]).objects.values()
    return one


def live(body: dict[str, Any]) -> dict[str, Any]:
    return {"uid": "x", "resourceVersion": "1", **body["metadata"]}


@pytest.mark.parametrize(
    ("theirs", "ours", "says"), [(100, 99, Claim.WON), (100, 100, Claim.TAKEN), (1, 2, Claim.TAKEN)]
)
def test_the_lower_tier_wins_and_a_tie_keeps_the_owner(theirs: int, ours: int, says: Claim) -> None:
    found = seen(live(marked(placed(), owner("u-2", tier=theirs))))
    assert claim(found, owner(tier=ours)) is says
    assert (found.profile, found.tier) == ("ClusterProfile base", theirs)


def test_what_carries_our_mark_is_ours_whatever_its_tier() -> None:
    assert claim(seen(live(marked(placed(), owner(tier=1)))), owner(tier=100)) is Claim.OURS


def test_what_carries_no_mark_is_foreign() -> None:
    assert claim(seen({"uid": "x", "resourceVersion": "1"}), owner()) is Claim.FOREIGN


def test_a_tier_that_cannot_be_read_counts_as_the_default() -> None:
    metadata = live(marked(placed(), owner("u-2")))
    metadata["annotations"]["projectsveltos.io/owner-tier"] = "first"
    assert claim(seen(metadata), owner(tier=99)) is Claim.WON
    assert claim(seen(metadata), owner(tier=100)) is Claim.TAKEN


def test_every_mark_is_among_those_that_are_taken_off() -> None:
    body = marked(placed(), owner(), adopted=True)
    assert set(body["metadata"]["labels"]) <= set(MARKED_LABELS)
    assert set(body["metadata"]["annotations"]) <= set(MARKED_ANNOTATIONS)


def test_the_marks_of_a_manifest_itself_do_not_count() -> None:
    body = marked(placed(labels={OWNER_LABEL: "u-9", "app": "a"}), owner())
    assert body["metadata"]["labels"][OWNER_LABEL] == "u-1"
    assert body["metadata"]["labels"]["app"] == "a"


def test_the_hash_changes_with_the_content_and_with_the_marks() -> None:
    hashes = [
        hash_in(marked(placed(), owner())),
        hash_in(marked(placed(labels={"a": "b"}), owner())),
        hash_in(marked(placed(), owner(tier=5))),
        hash_in(marked(placed(), owner(), adopted=True)),
    ]
    assert len(set(hashes)) == 4
    assert hash_in(marked(placed(), owner())) == hashes[0]
    assert seen(live(marked(placed(), owner()))).hash == hashes[0]


def test_an_adopted_object_says_so() -> None:
    assert seen(live(marked(placed(), owner(), adopted=True))).adopted
    assert ADOPTED_ANNOTATION not in marked(placed(), owner())["metadata"]["annotations"]
