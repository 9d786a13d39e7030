"""The connection to a member, from its Secret."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.sveltos import ClusterType
from unwind.kube.errors import UnreachableError
from unwind.kube.kubeconfig import Token
from unwind.members import credentials
from unwind.members.targets import AddonTarget, APIEndpoint, ClusterTarget

CONFIG = """
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: 'https://prod'}}]
users: [{name: a, user: {token: t}}]
"""


def target(**more: Any) -> AddonTarget:
    ref = ObjectRef(kind="Cluster", namespace="fleet", name="prod", uid="u-1")
    return AddonTarget(type=ClusterType.CAPI, ref=ref, secret="prod-kubeconfig", **more)  # noqa: S106 - a name


def secret(**data: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}}


def test_the_key_is_the_one_that_is_named_or_the_first() -> None:
    held = secret(b=CONFIG.replace("prod", "b"), a=CONFIG)
    assert credentials.connection(target(), held).server == "https://prod"
    named = credentials.connection(target(secret_key="b"), held)  # noqa: S106 - a key in a Secret
    assert (named.server, named.credential) == ("https://b", Token("t"))


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({}, "Secret fleet/prod-kubeconfig is empty"),
        (secret(a="nothing"), "'a' in Secret fleet/prod-kubeconfig is not a kubeconfig"),
        ({"data": {"a": "%"}}, "cannot connect to Cluster fleet/prod"),
        (secret(a=CONFIG.replace("token: t", "tokenFile: /etc/passwd")), "names a file"),
        (
            secret(a=CONFIG.replace("token: t", "exec: {command: sh, apiVersion: v1}")),
            "the kubeconfig has an exec plugin",
        ),
    ],
)
def test_a_secret_that_tells_no_way_says_why(held: dict[str, Any], said: str) -> None:
    with pytest.raises(UnreachableError, match=said):
        credentials.connection(target(), held)


def test_what_is_wrong_says_nothing_of_what_is_in_the_secret() -> None:
    with pytest.raises(UnreachableError) as raised:
        credentials.connection(target(), secret(a="token: sesame: ["))
    assert "sesame" not in str(raised.value)


def member(**more: Any) -> ClusterTarget:
    """A Karmada Cluster with a Secret and a server address."""
    given = {"secret": "edge", "secret_namespace": "karmada-cluster"} | more
    ref = ObjectRef(group="cluster.karmada.io", kind="Cluster", name="edge", uid="u-1")
    return ClusterTarget(ref=ref, endpoint=APIEndpoint(server="https://edge"), **given)


def found(*owners: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"ownerReferences": [{"uid": uid} for uid in owners]}, **more}


def test_a_member_is_reached_by_a_secret_that_says_that_it_is_its_own() -> None:
    elsewhere = member(secret="token", secret_namespace="fleet")  # noqa: S106 - names
    assert credentials.belongs(elsewhere, found("u-1"))
    assert not credentials.belongs(elsewhere, found("u-2"))
    assert not credentials.belongs(elsewhere, found())


def test_or_by_the_secret_of_its_name_where_join_puts_it() -> None:
    assert credentials.belongs(member(), found())
    assert not credentials.belongs(member(secret="other"), found())  # noqa: S106 - a name


def test_a_token_of_a_service_account_of_the_management_cluster_is_never_sent_to_a_member() -> None:
    account = {"type": "kubernetes.io/service-account-token"}
    assert not credentials.belongs(member(), found("u-1", **account))


def test_a_kubeconfig_names_its_server_itself() -> None:
    assert credentials.belongs(target(), found())


@pytest.mark.parametrize("text", ["*hunter2", "!hunter2 x", "[hunter2: {", "a: b: hunter2"])
def test_no_word_of_a_secret_that_is_not_a_kubeconfig_is_in_the_message(text: str) -> None:
    """Users who may name a Secret, but not read it, read the message."""
    with pytest.raises(UnreachableError) as caught:
        credentials.connection(target(), secret(a=text))
    assert "hunter2" not in str(caught.value)
    assert "is not a kubeconfig" in str(caught.value)
