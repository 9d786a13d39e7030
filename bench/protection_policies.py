"""Deletion protection by policies: what a refused DELETE costs the API server.

Everything is asked with dry runs, 16 at once, so that the same objects can be asked about again and again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import uvloop

from bench.ratios import Ratio, alternate
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.api.resources import (
    DEPLOYMENTS,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
)
from unwind.api.rights import HOME
from unwind.concurrency import gather_limited
from unwind.kube.errors import ApiError
from unwind.local.plane import running
from unwind.protection import admission_policies, manifests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from unwind.api.resources import Resource
    from unwind.kube.client import Client, Object

CALLERS = 16
ASKED = 3_000
OBJECTS = 64
NAMESPACE = "bench"
CONSTANT_LABEL = "bench.unwind.dev/constant"


async def main() -> None:
    async with running() as plane:
        management = plane.management
        await management.create_namespace(NAMESPACE)
        await by_policy(management.client)


# By policies


async def by_policy(client: Client) -> None:
    """A protected Deployment, against one that a policy of a single constant expression refuses."""
    protected = await deployments(client, "protected", {DELETE_PROTECTION_LABEL: "Cascading"})
    refused = await deployments(client, "refused", {CONSTANT_LABEL: "yes"})
    free = await deployments(client, "free", {})
    made, bindings = manifests.policy_objects(HOME)
    constant = constant_policy()
    for policy in (*made, constant[0]):
        await client.apply(VALIDATING_ADMISSION_POLICIES, policy)
    for binding in (*bindings, constant[1]):
        await client.apply(VALIDATING_ADMISSION_POLICY_BINDINGS, binding)
    for objects in (protected, refused):
        await until_refused(client, objects[0])

    took, least = await alternate(deleting(client, protected, expected=403), deleting(client, refused, expected=403))
    what = f"{ASKED:,} DELETEs of a protected Deployment"
    print(Ratio(what, "the same by a policy of one constant", took, least, goal=round(1 / 0.9, 2)))
    await unlabelled(client, free)
    unprotected = await deleting(client, free, expected=0)()
    rates = [f"{ASKED / item:,.0f}" for item in (took, least, unprotected)]
    print(f"DELETEs a second: protected {rates[0]}, by a constant {rates[1]}, unprotected {rates[2]}")


async def unlabelled(client: Client, free: list[Object]) -> None:
    """A Deployment without a label, with and without the policy for all kinds: its selector leaves it out."""
    name = manifests.policy_name(admission_policies.ANY_KIND, HOME)
    [binding] = [item for item in manifests.policy_objects(HOME)[1] if item["metadata"]["name"] == name]
    body = {"apiVersion": SERVICE_ACCOUNTS.api_version, "kind": SERVICE_ACCOUNTS.kind}
    metadata = {"name": "canary", "namespace": NAMESPACE, "labels": {DELETE_PROTECTION_LABEL: "Always"}}
    canary = await client.create(SERVICE_ACCOUNTS, body | {"metadata": metadata})

    async def with_it() -> float:
        await client.apply(VALIDATING_ADMISSION_POLICY_BINDINGS, binding)
        while await ask(client, canary, SERVICE_ACCOUNTS) != 403:
            pass
        return await deleting(client, free, expected=0)()

    async def without_it() -> float:
        found = await client.get(VALIDATING_ADMISSION_POLICY_BINDINGS, name)
        await client.delete(VALIDATING_ADMISSION_POLICY_BINDINGS, name, uid=found["metadata"]["uid"])
        while await ask(client, canary, SERVICE_ACCOUNTS) != 0:
            pass
        return await deleting(client, free, expected=0)()

    took, least = await alternate(with_it, without_it)
    what = f"{ASKED:,} DELETEs of an unlabelled Deployment"
    print(Ratio(what, "the same without the policy for all kinds", took, least, goal=1.05))


def constant_policy() -> tuple[Object, Object]:
    """What a policy costs at the least: as selective as ours, and one expression."""
    name = "constant.bench.unwind.dev"
    rule = {"apiGroups": ["apps"], "apiVersions": ["*"], "resources": ["deployments"], "operations": ["DELETE"]}
    selected = {"matchExpressions": [{"key": CONSTANT_LABEL, "operator": "Exists"}]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "objectSelector": selected},
        "validations": [{"expression": "false", "message": "no", "reason": "Forbidden"}],
    }
    kinds = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)
    policy, binding = (
        {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}} for kind in kinds
    )
    return policy | {"spec": spec}, binding | {"spec": {"policyName": name, "validationActions": ["Deny"]}}


# Objects, and asking about them


async def deployments(client: Client, name: str, labels: dict[str, str]) -> list[Object]:
    """Some of them, that nobody makes Pods of."""
    made: list[Object] = []

    async def make(number: int) -> None:
        match = {"app": f"{name}-{number}"}
        containers = [{"name": "main", "image": "registry.example/app"}]
        body = {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "metadata": {"name": f"{name}-{number}", "namespace": NAMESPACE, "labels": labels},
            "spec": {
                "replicas": 2,
                "paused": True,
                "selector": {"matchLabels": match},
                "template": {"metadata": {"labels": match}, "spec": {"containers": containers}},
            },
        }
        made.append(await client.create(DEPLOYMENTS, body))

    await gather_limited((make(number) for number in range(OBJECTS)), limit=CALLERS)
    return made


def deleting(client: Client, objects: list[Object], *, expected: int) -> Callable[[], Awaitable[float]]:
    """How long all DELETEs take; each has to be answered with that status, 0 for none but success."""

    async def run() -> float:
        began = time.perf_counter()
        asked = iter(range(ASKED))

        async def caller() -> None:
            for number in asked:
                said = await ask(client, objects[number % len(objects)])
                assert said == expected, said

        await gather_limited((caller() for _ in range(CALLERS)), limit=CALLERS)
        return time.perf_counter() - began

    return run


async def ask(client: Client, obj: Object, resource: Resource = DEPLOYMENTS) -> int:
    """What a DELETE, as a dry run, is refused with; 0 if it is not."""
    metadata = obj["metadata"]
    try:
        await client.delete(resource, metadata["name"], uid=metadata["uid"], namespace=NAMESPACE, dry_run=True)
    except ApiError as error:
        return error.code
    return 0


async def until_refused(client: Client, obj: Object) -> None:
    """A policy is heeded a moment after it was written."""
    while await ask(client, obj) != 403:
        pass


if __name__ == "__main__":
    uvloop.run(main())
