"""The way to a member, out of its Secret."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from unwind.api.meta import ObjectRef
from unwind.api.sveltos import ClusterType
from unwind.fleet import credentials
from unwind.fleet.targets import Target
from unwind.kube.errors import UnreachableError
from unwind.kube.kubeconfig import Token

CONFIG = """
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: 'https://prod'}}]
users: [{name: a, user: {token: t}}]
"""


def target(**more: Any) -> Target:
    ref = ObjectRef(kind="Cluster", namespace="fleet", name="prod", uid="u-1")
    return Target(type=ClusterType.CAPI, ref=ref, secret="prod-kubeconfig", **more)  # noqa: S106 - a name


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
        ({"data": {"a": "%"}}, "Cluster fleet/prod cannot be reached"),
        (secret(a=CONFIG.replace("token: t", "tokenFile: /etc/passwd")), "names a file"),
        (secret(a=CONFIG.replace("token: t", "exec: {command: sh, apiVersion: v1}")), "names a program to run"),
    ],
)
def test_a_secret_that_tells_no_way_says_why(held: dict[str, Any], said: str) -> None:
    with pytest.raises(UnreachableError, match=said):
        credentials.connection(target(), held)


def test_what_is_wrong_says_nothing_of_what_is_in_the_secret() -> None:
    with pytest.raises(UnreachableError) as raised:
        credentials.connection(target(), secret(a="token: sesame: ["))
    assert "sesame" not in str(raised.value)
