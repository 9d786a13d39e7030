"""What a label does not protect against, in words."""

from __future__ import annotations

import pytest

from unwind.api.policies import DeleteProtection
from unwind.protecting.kinds import DEFINITION, KINDS, NAMESPACE, Kind
from unwind.protecting.limits import not_against

ALWAYS, CASCADING = DeleteProtection.ALWAYS, DeleteProtection.CASCADING


def told(kind: Kind, word: DeleteProtection = ALWAYS, *owners: str) -> str:
    return "\n".join(not_against(kind, word, owners=owners))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
def test_whoever_may_write_can_take_every_label_away(kind: Kind) -> None:
    assert "can take the label policy.kruise.io/delete-protection away" in told(kind)


def test_owners_namespaces_and_definitions_are_named_where_there_are_some() -> None:
    by_name = {kind.resource: kind for kind in KINDS}
    replica_set, clone_set = by_name["replicasets.apps"], by_name["clonesets.apps.kruise.io"]
    assert "the deletion of Deployment web, which owns it: in the foreground" in told(
        replica_set, ALWAYS, "Deployment web"
    )
    assert "which owns it" not in told(replica_set)
    assert "the deletion of its namespace while no manager runs" in told(replica_set)
    assert "the deletion of its namespace" not in told(by_name["persistentvolumes"])
    assert "the deletion of the CRD clonesets.apps.kruise.io" in told(clone_set)
    assert "the deletion of the CRD" not in told(replica_set)


def test_cascading_says_when_it_ends_and_containers_that_they_are_no_guard_of_what_is_in_them() -> None:
    assert "as soon as no active Pod and no bound claim is in it" in told(NAMESPACE, CASCADING)
    assert "as soon as there are no resources of it" in told(DEFINITION, CASCADING)
    assert "the deletion of single objects in it" in told(NAMESPACE)
    for kind in KINDS:
        assert ("its deletion as soon as" in told(kind, CASCADING)) is True
        assert "its deletion as soon as" not in told(kind)
