from __future__ import annotations

from typing import Any

import pytest

from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.api.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    NAMESPACES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Resource,
)
from unwind.protection import protected_kinds, rules
from unwind.why import facts
from unwind.why.answers import Effect, Finding, Kubectl, Thing
from unwind.why.refusals import APIRefusal, deletion_webhooks, refusal_finding, unknowable

KUBECTL = Kubectl()
HOOKS = deletion_webhooks(
    Thing(resource=VALIDATING_WEBHOOK_CONFIGURATIONS, name="guards", uid="v-1"),
    {
        "webhooks": [
            {"name": "guard.example.dev", "clientConfig": {"url": "https://x/"}, "rules": [{"operations": ["CREATE"]}]},
            {
                "name": "guard.example.dev",
                "clientConfig": {"service": {"namespace": "ops", "name": "guard"}},
                "rules": [{"operations": ["CREATE"]}, {"operations": ["DELETE"]}],
                "failurePolicy": "Fail",
            },
        ]
    },
)


def ask(message: str, resource: Resource = CONFIG_MAPS, *, label: str = "", code: int = 403) -> Finding:
    metadata: dict[str, Any] = {"name": "web", "uid": "u-1"}
    if resource.namespaced:
        metadata["namespace"] = "shop"
    if label:
        metadata["labels"] = {DELETE_PROTECTION_LABEL: label}
    it = facts.facts_of(Thing(resource=resource, name="web"), {"metadata": metadata})
    return refusal_finding(it, APIRefusal(code=code, reason="Forbidden", message=message), KUBECTL, HOOKS)


def test_a_webhook_that_does_not_answer_is_found_by_its_name() -> None:
    found = ask(
        'Internal error occurred: failed calling webhook "guard.example.dev": failed to call webhook: connect: refused',
        code=500,
    )
    assert found.reason == Reason.WEBHOOK_SILENT
    assert found.actor == "the owner of Service ops/guard"
    [remedy] = found.remedies
    assert '"path":"/webhooks/1/name","value":"guard.example.dev"' in remedy.commands[0]
    assert '"path":"/webhooks/1/failurePolicy","value":"Ignore"' in remedy.commands[0]
    assert '"value":"Fail"' in remedy.afterwards[0]


def test_a_webhook_that_is_in_no_configuration_has_no_command() -> None:
    found = ask('failed calling webhook "gone.example.dev": no route to host', code=500)
    assert (found.reason, found.remedies) == (Reason.WEBHOOK_SILENT, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('admission webhook "guard.example.dev" denied the request: not on Fridays', "guard): not on Fridays"),
        ('admission webhook "guard.example.dev" denied the request without explanation', "no reason given"),
        (
            "configmaps \"web\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'all' denied request: no",
            "denied by the ValidatingAdmissionPolicy keep (binding all): no",
        ),
    ],
)
def test_nobody_is_told_how_to_get_around_a_denial(text: str, said: str) -> None:
    found = ask(text)
    assert found.reason == Reason.DENIED
    assert said in found.message
    assert {remedy.effect for remedy in found.remedies} == {Effect.LOOKS}


def test_a_webhook_that_supports_no_dry_run_says_nothing_about_the_deletion() -> None:
    text = 'admission webhook "guard.example.dev" does not support dry run'
    assert unknowable(APIRefusal(code=400, reason="BadRequest", message=text))
    assert "does not support dry run" in ask(text, code=400).message


@pytest.mark.parametrize(
    ("resource", "text", "commands"),
    [
        (
            CONFIG_MAPS,
            'User "bob" cannot delete resource "configmaps" in API group "" in the namespace "shop"',
            (
                (
                    "kubectl create role delete-configmaps-web -n shop --verb=get,delete --resource=configmaps"
                    " --resource-name=web"
                ),
                "kubectl create rolebinding delete-configmaps-web -n shop --role=delete-configmaps-web --user=bob",
            ),
        ),
        (
            CUSTOM_RESOURCE_DEFINITIONS,
            (
                'User "system:serviceaccount:a:b" cannot delete resource "customresourcedefinitions" in API group'
                ' "apiextensions.k8s.io" at the cluster scope'
            ),
            (
                (
                    "kubectl create clusterrole delete-customresourcedefinitions-web --verb=get,delete"
                    " --resource=customresourcedefinitions.apiextensions.k8s.io --resource-name=web"
                ),
                (
                    "kubectl create clusterrolebinding delete-customresourcedefinitions-web"
                    " --clusterrole=delete-customresourcedefinitions-web --user=system:serviceaccount:a:b"
                ),
            ),
        ),
    ],
)
def test_a_missing_right_is_given_for_one_object_only(resource: Resource, text: str, commands: tuple[str, ...]) -> None:
    found = ask(text, resource)
    assert found.reason == Reason.NO_RIGHT
    [remedy] = found.remedies
    assert remedy.commands == commands
    assert remedy.by == "an administrator who can grant permissions"


def denial(resource: Resource, label: str, **subject: Any) -> str:
    kind = protected_kinds.kind_of(resource.group, resource.kind)
    assert kind
    said = rules.by_itself(rules.Subject(kind=kind, label=label, **subject))
    assert isinstance(said, rules.Denied)
    return said.message


def test_the_words_of_deletion_protection_are_understood() -> None:
    always = ask(denial(CONFIG_MAPS, "Always"), label="Always")
    assert always.reason == Reason.PROTECTED
    assert always.remedies[0].commands == (
        "kubectl label -n shop configmap/web policy.kruise.io/delete-protection-",
        "kubectl delete -n shop configmap/web --wait=false --ignore-not-found",
    )
    cascading = ask(denial(DEPLOYMENTS, "Cascading", count=2), DEPLOYMENTS, label="Cascading")
    assert "as long as something depends on it: replicas 2" in cascading.message
    assert [remedy.effect for remedy in cascading.remedies] == [Effect.SAFE, Effect.LEAVES]
    unknown = ask(denial(CONFIG_MAPS, "always"), label="always")
    assert unknown.reason == Reason.UNKNOWN_VALUE


def test_what_is_protected_inside_a_namespace_is_named_one_by_one() -> None:
    inside = (
        Thing(resource=CONFIG_MAPS, name="m", namespace="web"),
        Thing(resource=DEPLOYMENTS, name="d", namespace="web"),
    )
    subject = rules.Subject(kind=protected_kinds.NAMESPACE)
    said = rules.with_contents(subject, rules.Contents(protected=tuple(item.ref for item in inside)))
    assert isinstance(said, rules.Denied)
    found = ask(said.message, NAMESPACES)
    assert found.remedies[0].commands == (
        "kubectl label -n web configmap/m policy.kruise.io/delete-protection-",
        "kubectl label -n web deployment/d policy.kruise.io/delete-protection-",
        "kubectl delete namespace/web --wait=false --ignore-not-found",
    )


def test_a_namespace_that_still_has_pods_shows_how_to_see_them() -> None:
    subject = rules.Subject(kind=protected_kinds.NAMESPACE, label="Cascading")
    said = rules.with_contents(subject, rules.Contents(pods=3))
    assert isinstance(said, rules.Denied)
    found = ask(said.message, NAMESPACES, label="Cascading")
    assert found.remedies[0].commands == ("kubectl get pods -n web",)


def test_what_is_not_understood_is_told_as_it_came() -> None:
    found = ask('namespaces "default" is forbidden: this namespace may not be deleted', NAMESPACES)
    assert found.remedies == ()
    assert "this namespace may not be deleted" in found.message


def test_a_namespace_whose_contents_cannot_be_listed_waits_for_the_owner_of_that_api() -> None:
    denied = rules.with_contents(
        rules.Subject(kind=protected_kinds.NAMESPACE),
        rules.Contents(failed="v1.x.dev does not answer; repair its server"),
    )
    assert isinstance(denied, rules.Denied)
    found = ask(
        f'admission webhook "unlabelled.protection.unwind.dev" denied the request: {denied.message}', NAMESPACES
    )
    assert found.reason == Reason.PROTECTED
    assert found.message.endswith("cannot be listed: v1.x.dev does not answer; repair its server")
    assert found.remedies == ()
