"""The hash of a feature tells what is deployed, and which effort its Inventories have."""

from __future__ import annotations

import pytest

from unwind.addons.summary_status import feature_hash, lacks_effort, same_content, with_effort, with_efforts
from unwind.api.sveltos import ClusterSummaryStatus, FeatureSummary
from unwind.api.unwind import Effort


def status(*hashes: str, word: str = "Provisioned") -> ClusterSummaryStatus:
    features = tuple(FeatureSummary(feature_id="Resources", status=word, hash=item) for item in hashes)
    return ClusterSummaryStatus(feature_summaries=features)


def test_the_effort_does_not_change_the_content() -> None:
    plain = feature_hash(["a"])
    for effort in Effort:
        assert same_content(with_effort(plain, effort), plain)
        assert not same_content(with_effort(plain, effort), feature_hash(["b"]))
    assert with_effort(with_effort(plain, Effort.TRY), Effort.ENFORCE) == with_effort(plain, Effort.ENFORCE)


def test_a_hash_with_another_effort_lacks_it() -> None:
    plain = feature_hash(["a"])
    recorded = status(with_effort(plain, Effort.TRY))
    assert not lacks_effort(recorded, Effort.TRY)
    assert lacks_effort(recorded, Effort.ENFORCE)
    assert not lacks_effort(with_efforts(recorded, Effort.ENFORCE), Effort.ENFORCE)
    assert lacks_effort(status(plain), Effort.TRY), "a hash of an earlier release has no effort"
    assert not lacks_effort(status(), Effort.ENFORCE), "nothing was deployed"


def test_a_deployment_that_never_ended_lacks_only_a_stricter_effort() -> None:
    assert lacks_effort(status("", word="Failed"), Effort.ENFORCE)
    assert not lacks_effort(status("", word="Failed"), Effort.TRY)
    assert not lacks_effort(status("", word="Removed"), Effort.ENFORCE)


@pytest.mark.parametrize("hash_", ["not base64!", "YWJj", "="])
def test_a_hash_of_another_controller_is_other_content_without_an_effort(hash_: str) -> None:
    assert not same_content(hash_, feature_hash(["a"]))
    assert lacks_effort(status(hash_), Effort.TRY)
