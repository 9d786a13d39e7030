"""Explains why the API server refuses the deletion of an object (pure).

Only the text of the error says who refused, so that text is parsed. The patterns are those of Kubernetes 1.36; any
other text is reported unchanged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import DeleteProtection
from unwind.api.names import DELETE_PROTECTION_LABEL, Reason
from unwind.server.path_segments import redacted
from unwind.why.answers import Effect, Finding, Remedy, Thing
from unwind.why.facts import ControllerWorkload, cut
from unwind.why.terminating_objects import started

if TYPE_CHECKING:
    from collections.abc import Iterable

    from unwind.protection.deleter import ProtectedObject
    from unwind.why.answers import Kubectl
    from unwind.why.facts import ObjectSnapshot

_SILENT = re.compile(r'failed calling webhook "([^"]+)": (.*)', re.DOTALL)
_DENIED = re.compile(r'admission webhook "([^"]+)" denied the request(?:: (.*)| without explanation)', re.DOTALL)
_NO_DRY_RUN = re.compile(r'admission webhook "([^"]+)" does not support dry run')
_POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '([^']+)' denied request: (.*)", re.DOTALL)
_RIGHT = re.compile(r'User "([^"]*)" cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_PROTECTION = "ResourcesProtectionDeletion"
_COUNTED = re.compile(rf"{re.escape(DELETE_PROTECTION_LABEL)}=Cascading and (.+?) (\d+)>0")
_WITHIN = re.compile(rf"{re.escape(DELETE_PROTECTION_LABEL)} of what is (?:in|of) it: (.*)", re.DOTALL)
_UNLISTED = re.compile(r"list (?:pods|CRs|protected objects) error: (.*)", re.DOTALL)
_NAMED = re.compile(r"(\w+) (?:([a-z0-9.-]+)/)?([a-z0-9][a-z0-9.:-]*)")
_SCALED = ("Deployment", "StatefulSet", "ReplicaSet", "CloneSet", "UnitedDeployment")
# Contents of a Namespace or CRD as the denial names them, and the resource that lists them.
_LOOKED_AT = {"active pods": "pods", '"Bound" status pvc': "persistentvolumeclaims"}


class APIRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The error of the API server."""

    code: int
    reason: str
    message: str


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook that is called for deletions."""

    configuration: Thing
    place: int
    """Its index in the configuration."""
    name: str
    behind: str
    """Its address: Service namespace/name, or a URL."""
    service: tuple[str, str] | None = None
    """Namespace and name of the Service."""
    workload: ControllerWorkload | None = None
    """The workload behind the Service, if known."""


def deletion_webhooks(thing: Thing, configuration: dict[str, Any]) -> list[Webhook]:
    """The webhooks of this configuration that are called for deletions."""
    found = []
    for place, one in enumerate(configuration.get("webhooks") or ()):
        # A validating and a mutating webhook often share a name; the mutating one is rarely called for deletions.
        if not any(operation in ("DELETE", "*") for rule in one.get("rules") or () for operation in rule["operations"]):
            continue
        way = one.get("clientConfig") or {}
        service = way.get("service")
        behind = (
            f"Service {service.get('namespace')}/{service.get('name')}"
            if service
            else redacted(str(way.get("url", "")))
        )
        found.append(
            Webhook(
                configuration=thing,
                place=place,
                name=str(one.get("name", "")),
                behind=behind,
                service=(str(service.get("namespace")), str(service.get("name"))) if service else None,
            )
        )
    return found


def webhook_named(refusal: APIRefusal) -> str:
    """The webhook that the error names; empty if none is involved."""
    found = (form.search(refusal.message) for form in (_SILENT, _DENIED, _NO_DRY_RUN))
    return next((said[1] for said in found if said), "")


def unknowable(refusal: APIRefusal) -> bool:
    """Whether the error says nothing about the deletion, only that a dry run is not possible."""
    return bool(_NO_DRY_RUN.search(refusal.message))


def refusal_finding(
    look: ObjectSnapshot, refusal: APIRefusal, kubectl: Kubectl, known: Iterable[Webhook] = ()
) -> Finding:
    """Who refuses the deletion, why, and what to do about it. `known`: the webhooks of the cluster."""
    text = redacted(refusal.message)
    if _PROTECTION in text or DELETE_PROTECTION_LABEL in text:
        return _protected(look, text, kubectl)
    if said := _SILENT.search(text):
        return _silent(said[1], said[2], _named(known, said[1]), kubectl)
    if said := _DENIED.search(text):
        return _denied(said[1], said[2] or "", _named(known, said[1]), kubectl)
    if said := _NO_DRY_RUN.search(text):
        return _cannot_be_asked(said[1], _named(known, said[1]), kubectl)
    if said := _POLICY.search(text):
        return _by_policy(said[1], said[2], said[3], kubectl)
    if said := _RIGHT.search(text):
        return _no_right(look, said[1], said[2], kubectl)
    return Finding(
        reason=Reason.DENIED,
        message=f"the API server refuses the deletion ({refusal.code} {refusal.reason}): {cut(text)}",
        actor="Kubernetes (a built-in rule)" if refusal.code == 403 else "the administrator of the API server",
    )


def _named(known: Iterable[Webhook], name: str) -> Webhook | None:
    return next((webhook for webhook in known if webhook.name == name), None)


def _silent(name: str, error: str, webhook: Webhook | None, kubectl: Kubectl) -> Finding:
    if webhook is None:
        return Finding(
            reason=Reason.WEBHOOK_SILENT,
            message=f"the webhook {name} must be called but does not answer: {cut(error)}; find it with"
            " `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations`",
            actor=f"the owner of the webhook {name} (its configuration could not be read)",
        )
    path = f"/webhooks/{webhook.place}"
    guard = {"op": "test", "path": f"{path}/name", "value": name}

    def set_to(policy: str) -> str:
        change = {"op": "replace", "path": f"{path}/failurePolicy", "value": policy}
        return kubectl.patch(webhook.configuration, [guard, change])

    remedy = Remedy(
        commands=kubectl.lines(set_to("Ignore")),
        effect=Effect.LEAVES,
        about=f"while {webhook.behind} does not answer, requests are accepted without the check of {name}",
        afterwards=kubectl.lines(set_to("Fail")),
    )
    return Finding(
        reason=Reason.WEBHOOK_SILENT,
        message=f"the webhook {name} of {webhook.configuration} must be called, but {webhook.behind} does not answer: "
        f"{cut(error)}",
        actor=f"the owner of {webhook.behind}",
        remedies=(*started(webhook.workload, kubectl), remedy),
    )


def _denied(name: str, why: str, webhook: Webhook | None, kubectl: Kubectl) -> Finding:
    by = f"the webhook {name}" + (f" of {webhook.configuration} ({webhook.behind})" if webhook else "")
    return Finding(
        reason=Reason.DENIED,
        message=f"denied by {by}: {cut(why) or 'no reason given'}",
        actor=f"the owner of {webhook.behind if webhook else name}, unless you can do what the denial asks for",
        remedies=(_shown(webhook.configuration, kubectl),) if webhook else (),
    )


def _cannot_be_asked(name: str, webhook: Webhook | None, kubectl: Kubectl) -> Finding:
    return Finding(
        reason=Reason.HELD,
        message=f"the webhook {name} does not support dry run, so its decision is unknown until the actual deletion;"
        " delete it to see",
        actor="the webhook: only the actual DELETE shows what it decides",
        remedies=(_shown(webhook.configuration, kubectl),) if webhook else (),
    )


def _by_policy(policy: str, binding: str, why: str, kubectl: Kubectl) -> Finding:
    look = kubectl.call(
        "get", f"validatingadmissionpolicy/{policy}", f"validatingadmissionpolicybinding/{binding}", "-o", "yaml"
    )
    return Finding(
        reason=Reason.DENIED,
        message=f"denied by the ValidatingAdmissionPolicy {policy} (binding {binding}): {cut(why)}",
        actor=f"the author of the policy {policy}, unless you can do what the denial asks for",
        remedies=(Remedy(commands=kubectl.lines(look), effect=Effect.LOOKS, about="shows the policy"),),
    )


def _shown(thing: Thing, kubectl: Kubectl) -> Remedy:
    command = kubectl.on("get", thing, "-o", "yaml")
    return Remedy(commands=kubectl.lines(command), effect=Effect.LOOKS, about="shows the webhook and its rules")


def _no_right(look: ObjectSnapshot, user: str, verb: str, kubectl: Kubectl) -> Finding:
    thing = look.thing
    it = thing.resource
    kind = f"{it.plural}.{it.group}" if it.group else it.plural
    role = f"delete-{it.plural}-{thing.name}"
    where = ("-n", thing.namespace) if thing.namespace else ()
    scope = "" if thing.namespace else "cluster"
    verbs = "--verb=get,delete" if verb == "delete" else f"--verb=get,delete,{verb}"
    made = kubectl.call(
        "create", f"{scope}role", role, *where, verbs, f"--resource={kind}", f"--resource-name={thing.name}"
    )
    bound = kubectl.call("create", f"{scope}rolebinding", role, *where, f"--{scope}role={role}", f"--user={user}")
    return Finding(
        reason=Reason.NO_RIGHT,
        message=f"user {user} is not allowed to {verb} it (RBAC)",
        actor="an administrator who can grant permissions",
        remedies=(
            Remedy(
                commands=kubectl.lines(made, bound),
                effect=Effect.SAFE,
                about=f"allows {user} to delete this object",
                by="an administrator who can grant permissions",
                afterwards=kubectl.lines(
                    kubectl.call("delete", *where, f"{scope}rolebinding/{role}", f"{scope}role/{role}")
                ),
            ),
        ),
    )


# Deletion protection


def protection_finding(look: ObjectSnapshot, held: ProtectedObject, kubectl: Kubectl) -> Finding:
    """An object that the API server would delete, but Unwind does not, because of its label."""
    off = Remedy(
        commands=kubectl.lines(_unlabelled(look.thing, kubectl)),
        effect=Effect.DELETES,
        about="removes the protection, and Unwind then deletes it, although a user chose to keep it",
    )
    return Finding(
        reason=held.reason,
        message=held.why,
        actor="the user who protected it",
        remedies=(off,) if held.command else (),
    )


def _protected(look: ObjectSnapshot, text: str, kubectl: Kubectl) -> Finding:
    thing = look.thing
    if said := _WITHIN.search(text):
        return _protected_within(look, said[1], kubectl)
    if said := _UNLISTED.search(text):
        return Finding(
            reason=Reason.PROTECTED,
            message=f"it may contain protected objects, which cannot be listed: {cut(said[1])}",
            actor="the owner of the API or CRD that cannot be listed",
        )
    off = Remedy(
        commands=kubectl.lines(_unlabelled(thing, kubectl), _deleted(thing, kubectl)),
        effect=Effect.LEAVES,
        about="removes the protection and deletes it, although a user chose to keep it",
    )
    value = look.labels.get(DELETE_PROTECTION_LABEL, "")
    whose = f"protected by the label {DELETE_PROTECTION_LABEL}={value}"
    actor = "the user who protected it"
    if said := _COUNTED.search(text):
        return Finding(
            reason=Reason.PROTECTED,
            message=f"{whose} as long as something depends on it: {said[1]} {said[2]}",
            actor="the owner of what depends on it",
            remedies=(*_emptied(look, said[1], kubectl), off),
        )
    if value in tuple(DeleteProtection):
        return Finding(reason=Reason.PROTECTED, message=f"{whose}: {cut(text)}", actor=actor, remedies=(off,))
    right = kubectl.on("label", thing, "--overwrite", f"{DELETE_PROTECTION_LABEL}={DeleteProtection.ALWAYS.value}")
    return Finding(
        reason=Reason.UNKNOWN_VALUE,
        message=f"the label {DELETE_PROTECTION_LABEL} has the unknown value {value!r}, so it is protected: {cut(text)}",
        actor="the author of that label",
        remedies=(
            off,
            Remedy(
                commands=kubectl.lines(right),
                effect=Effect.SAFE,
                about="corrects the label, if the object must be kept",
            ),
        ),
    )


def _emptied(look: ObjectSnapshot, what: str, kubectl: Kubectl) -> tuple[Remedy, ...]:
    """Removes what depends on a protected object."""
    thing = look.thing
    if what == "replicas" and thing.resource.kind in _SCALED:
        return (
            Remedy(
                commands=kubectl.lines(kubectl.scale(thing, 0), _deleted(thing, kubectl)),
                effect=Effect.SAFE,
                about="stops its Pods and deletes it",
            ),
        )
    if thing.resource.kind == "Namespace" and what in _LOOKED_AT:
        command = kubectl.call("get", _LOOKED_AT[what], "-n", thing.name)
        return (Remedy(commands=kubectl.lines(command), effect=Effect.LOOKS, about="lists what must be deleted first"),)
    if thing.resource.kind == "CustomResourceDefinition":
        command = kubectl.call("get", thing.name, "--all-namespaces")
        return (Remedy(commands=kubectl.lines(command), effect=Effect.LOOKS, about="lists what must be deleted first"),)
    return ()


def _protected_within(look: ObjectSnapshot, named: str, kubectl: Kubectl) -> Finding:
    commands = []
    for kind, namespace, name in _NAMED.findall(named):
        where = ("-n", namespace) if namespace else ()
        commands.append(kubectl.call("label", *where, f"{kind.lower()}/{name}", f"{DELETE_PROTECTION_LABEL}-"))
    off = Remedy(
        commands=kubectl.lines(*commands, _deleted(look.thing, kubectl)),
        effect=Effect.LEAVES,
        about="removes the protection of its contents and deletes them with it, although a user chose to keep them",
    )
    return Finding(
        reason=Reason.PROTECTED,
        message=f"it contains objects protected by the label {DELETE_PROTECTION_LABEL}: {cut(named)}",
        actor="the user who protected them",
        remedies=(off,) if commands else (),
    )


def _deleted(thing: Thing, kubectl: Kubectl) -> str:
    # A client that was refused so far may delete it first: the garbage collector retries by itself.
    return kubectl.delete(thing, "--ignore-not-found")


def _unlabelled(thing: Thing, kubectl: Kubectl) -> str:
    return kubectl.on("label", thing, f"{DELETE_PROTECTION_LABEL}-")
