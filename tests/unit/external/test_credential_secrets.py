"""Credentials for external resources of objects on members: which Secret is used for which object."""

from __future__ import annotations

import base64

import pytest

from unwind.api.meta import ObjectMeta, ObjectRef
from unwind.api.names import CREDENTIALS_PREFIX, EXTERNAL_MEMBER_ANNOTATION, EXTERNAL_NAMESPACES_ANNOTATION
from unwind.deleters.outcomes import PermanentError, TransientError
from unwind.external.credential_secrets import CredentialsSecret, mapped, member_name
from unwind.server.manager_names import MANAGER

MEMBER = "cluster.x-k8s.io/Cluster/fleet/prod"


def secret(name: str, *, member: str = MEMBER, namespaces: str = "*") -> CredentialsSecret:
    annotations = {EXTERNAL_MEMBER_ANNOTATION: member, EXTERNAL_NAMESPACES_ANNOTATION: namespaces}
    return CredentialsSecret(ObjectMeta(name=name, namespace="unwind-system", annotations=annotations))


def test_a_member_is_named_by_the_object_that_represents_it() -> None:
    cluster = ObjectRef(group="cluster.x-k8s.io", kind="Cluster", namespace="fleet", name="prod", uid="1")
    assert member_name(cluster) == MEMBER
    assert (
        member_name(ObjectRef(group="cluster.karmada.io", kind="Cluster", name="m")) == "cluster.karmada.io/Cluster/m"
    )


@pytest.mark.parametrize(
    ("namespaces", "namespace", "fits"),
    [
        ("*", "team", True),
        ("*", "", True),
        ("team", "team", True),
        ("other, team", "team", True),
        ("other", "team", False),
        ("tea*", "team", False),
        ("", "team", False),
        ("", "", False),
        ("team", "", False),
    ],
)
def test_a_secret_is_for_the_namespaces_that_it_names(namespaces: str, namespace: str, fits: bool) -> None:
    found = mapped([secret("unwind-external-a", namespaces=namespaces)], member=MEMBER, namespace=namespace)
    assert (found is not None) is fits


@pytest.mark.parametrize(
    "member", ["", "*", "cluster.x-k8s.io/Cluster/fleet/other", "cluster.x-k8s.io/Cluster/fleet/*"]
)
def test_a_secret_for_another_member_is_not_used(member: str) -> None:
    assert mapped([secret("unwind-external-a", member=member)], member=MEMBER, namespace="team") is None


def test_a_secret_whose_name_is_not_guarded_is_not_used() -> None:
    assert mapped([secret("azure")], member=MEMBER, namespace="team") is None


def test_the_prefix_of_the_names_is_one_that_the_admission_policy_guards() -> None:
    assert CREDENTIALS_PREFIX.startswith(f"{MANAGER}-")


def test_a_secret_that_names_the_namespace_is_preferred() -> None:
    secrets = [secret("unwind-external-all"), secret("unwind-external-team", namespaces="team")]
    found = mapped(secrets, member=MEMBER, namespace="team")
    assert found
    assert found.metadata.name == "unwind-external-team"


def test_two_secrets_for_the_same_namespace_are_an_error() -> None:
    secrets = [secret("unwind-external-a", namespaces="team"), secret("unwind-external-b", namespaces="team,x")]
    with pytest.raises(TransientError, match="unwind-external-a and unwind-external-b both map"):
        mapped(secrets, member=MEMBER, namespace="team")


def test_values_are_decoded_and_never_shown() -> None:
    given = CredentialsSecret(ObjectMeta(name="s"), {"KEY": base64.b64encode(b"value").decode()})
    assert given.values() == {"KEY": "value"}
    with pytest.raises(PermanentError) as raised:
        CredentialsSecret(ObjectMeta(name="s"), {"KEY": base64.b64encode(b"\xffhidden").decode()}).values()
    assert "hidden" not in str(raised.value)
