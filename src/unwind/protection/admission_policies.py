"""The ValidatingAdmissionPolicies of deletion protection: the decisions that need only the object (pure).

They protect also while no manager runs. The same functions make the messages of the policies and of the webhook.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api.annotation_values import DeleteProtection
from unwind.api.names import DELETE_PROTECTION_LABEL
from unwind.protection import rules as words
from unwind.protection.protected_kinds import EXEMPT, KINDS, Controlled, ProtectedKind, of_any
from unwind.protection.rules import Why

if TYPE_CHECKING:
    from collections.abc import Iterable

Object = dict[str, Any]

_ALWAYS, _CASCADING = DeleteProtection.ALWAYS.value, DeleteProtection.CASCADING.value
_SELECTED = {"matchExpressions": [{"key": DELETE_PROTECTION_LABEL, "operator": "Exists"}]}
NOT_CASCADING: Object = {"key": DELETE_PROTECTION_LABEL, "operator": "NotIn", "values": [_CASCADING]}
"""A selector for a label that protects an object of any kind."""
# A placeholder in a text for a value that is known only at request time.
_LATER = "\0"

_STANDS = "oldObject != null && !has(oldObject.metadata.deletionTimestamp)"
# The value of the label, which exists: the policies match only labelled objects.
_SAYS = f"oldObject.metadata.labels['{DELETE_PROTECTION_LABEL}']"
STANDING: Object = {"name": "not-going-already", "expression": _STANDS}
"""An object that is not terminating yet."""


def _labelled(of: str) -> str:
    return f"has({of}.metadata.labels) && '{DELETE_PROTECTION_LABEL}' in {of}.metadata.labels"


def _controlled(of: str) -> str:
    return (
        f"has({of}.metadata.ownerReferences)"
        f" && {of}.metadata.ownerReferences.exists(owner, has(owner.controller) && owner.controller)"
    )


# The users of Kubernetes' controllers, shared or separate.
_BY_CONTROLLERS = (
    "(request.userInfo.username == 'system:kube-controller-manager'"
    " || (has(request.userInfo.groups) && 'system:serviceaccounts:kube-system' in request.userInfo.groups))"
)
UNCONTROLLED: Object = {"name": "no-controller", "expression": f"!({_controlled('oldObject')})"}
"""An object without a controller."""
_WRITTEN = f"object.metadata.labels['{DELETE_PROTECTION_LABEL}']"
# In the oldest CEL dialect: webhooks have these conditions as well, on API servers without policies.
NEW_VALUE: list[Object] = [
    {
        "name": "new-or-changed",
        "expression": f"{_labelled('object')}"
        f" && (oldObject == null || !({_labelled('oldObject')}) || {_SAYS} != {_WRITTEN})",
    },
    {
        "name": "not-by-a-controller",
        # A ReplicaSet has the labels of a template; so has a claim of a StatefulSet, which has no owner. Denying them
        # would
        # stop a running workload, and the author of the template would never see why.
        "expression": f"!({_controlled('object')}) && !{_BY_CONTROLLERS}",
    },
]
"""A new value of the label, which must be a known one."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its binding."""

    name: str
    """The part of the name that both objects share."""
    spec: Object
    action: str = "Deny"
    kinds: tuple[ProtectedKind, ...]

    @property
    def binding(self) -> Object:
        """The spec of the binding, for a policy of this name."""
        return {"validationActions": [self.action]}


def protection_policies(kinds: Iterable[ProtectedKind] = KINDS) -> tuple[Policy, ...]:
    """All policies: one per countable field, one for all other kinds, one for label values, one with the hint for a
    stopped manager."""
    known = tuple(kinds)
    families = groupby(sorted(known, key=_family), key=_family)
    deletions = [_deletion(name, tuple(family)) for name, family in families]
    containers = tuple(kind for kind in known if kind.rest)
    return *deletions, _any_kind(known), _labels(known), _unanswered(containers)


def of(kind: ProtectedKind) -> Policy:
    """The policy for deletions of a kind."""
    found = protection_policies()
    own = (policy for policy in found if kind in policy.kinds and policy.action == "Deny")
    return next(own, None) or next(policy for policy in found if policy.name == ANY_KIND)


def resource_rules(kinds: Iterable[ProtectedKind], operations: Iterable[str]) -> list[Object]:
    """The resource rules of policies and webhooks, without subresources."""
    # Any version: later ones are protected as well, and groups that are not served match nothing.
    return [
        {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": list(operations),
            "resources": [kind.plural for kind in of_group],
            "scope": "*",
        }
        for group, of_group in groupby(sorted(kinds, key=lambda one: one.group), key=lambda one: one.group)
    ]


ANY_KIND = "any-kind"
"""The policy for all kinds without their own."""
EVERYTHING = "*"


def any_rule(*operations: str) -> Object:
    """The resource rule for every kind, without subresources."""
    every = {"apiGroups": [EVERYTHING], "apiVersions": [EVERYTHING], "resources": [EVERYTHING]}
    return every | {"operations": list(operations), "scope": "*"}


def not_of(kinds: Iterable[ProtectedKind]) -> Object:
    """The condition that a request is about none of these kinds."""
    listed = ", ".join(f"'{kind.group}/{kind.plural}'" for kind in kinds)
    about = "request.resource.group + '/' + request.resource.resource"
    return {"name": "another-kind", "expression": f"!(({about}) in [{listed}])"}


def _family(kind: ProtectedKind) -> str:
    """The name of the policy that a kind shares with others of the same countable field."""
    if kind.rest:
        return "contents"
    if kind.controlled is Controlled.FREE_FOR_CONTROLLERS:
        return kind.plural
    if kind.count:
        return re.sub("[^a-z0-9]+", "-", kind.count.what.lower()).strip("-")
    return "always-or-nothing" if kind.cascading else "always"


def _deletion(name: str, kinds: tuple[ProtectedKind, ...]) -> Policy:
    why, text = _why(kinds[0]), _denial(kinds[0])
    return Policy(
        name=name,
        kinds=kinds,
        spec=_spec(
            kinds,
            ("DELETE",),
            # One validation, no variables and no conditions: each variable would be a program that runs again for
            # verdict,
            # message and audit, each message is evaluated whether it is needed or not, and for conditions the API
            # server makes
            # one more copy of the object. Together that made a denied DELETE a tenth slower.
            validations=[_validation(_passes(kinds[0]), f"({text}) + {_way_out(kinds)}")],
            # The only trace of a denial: a request that a policy denies does not reach the webhook.
            auditAnnotations=[{"key": "denied", "valueExpression": why}],
        ),
    )


def _any_kind(kinds: tuple[ProtectedKind, ...]) -> Policy:
    """`Always` and unknown values, for every kind without its own policy.

    The selector is matched before any expression runs, so a DELETE of an unlabelled object costs nothing more.
    """
    other = of_any("", "", plural="", version="")
    spec = _spec(
        (),
        ("DELETE",),
        validations=[_validation(f"!({_STANDS}) || {_free(other)}", f"({_denial(other)}) + {_way_out_of_any()}")],
        auditAnnotations=[{"key": "denied", "valueExpression": _why(other)}],
    )
    spec["matchConstraints"] |= {
        "resourceRules": [any_rule("DELETE")],
        "excludeResourceRules": resource_rules((*kinds, *EXEMPT), ("DELETE",)),
        # On these kinds Cascading does not protect, as on a Service.
        "objectSelector": {"matchExpressions": [*_SELECTED["matchExpressions"], NOT_CASCADING]},
    }
    return Policy(name=ANY_KIND, kinds=(), spec=spec)


def _free(kind: ProtectedKind) -> str:
    """CEL: whether the label does not protect because the object has a controller."""
    match kind.controlled:
        case Controlled.FREE:
            return f"({_controlled('oldObject')})"
        case Controlled.FREE_FOR_CONTROLLERS:
            return f"({_controlled('oldObject')} && {_BY_CONTROLLERS})"
    return "false"


def _passes(kind: ProtectedKind) -> str:
    """CEL: whether the object alone allows the deletion, or the webhook decides. Short, because most requests end
    here."""
    going = f"!({_STANDS})"
    if kind.controlled is not Controlled.PROTECTED:
        going += f" || {_free(kind)}"
    if not kind.cascading:
        return going
    free = kind.count.cel("oldObject", some=lambda _: "false", none="true", unread="false") if kind.count else "true"
    return f"{going} || ({_SAYS} == '{_CASCADING}' && ({free}))"


def _why(kind: ProtectedKind) -> str:
    """CEL, equal to `rules.by_itself`: why it may not be deleted; empty if it may, or if the webhook decides."""
    depends = "''"
    if kind.count:
        depends = kind.count.cel(
            "oldObject", some=lambda _: f"'{Why.CASCADING}'", none="''", unread=f"'{Why.NOT_KNOWN}'"
        )
    said = _by_word(kind, f"'{Why.ALWAYS}'", depends, f"'{Why.UNKNOWN_VALUE}'")
    going = f"!({_STANDS})"
    if kind.controlled is not Controlled.PROTECTED:
        going = f"({going} || {_free(kind)})"
    return f"{going} ? '' : {said}"


def _denial(kind: ProtectedKind) -> str:
    """CEL: the message of a denial; any value for an allowed request."""
    depends = "''"
    if counted := kind.count:
        some = words.cascading(counted.what, _LATER)
        depends = counted.cel(
            "oldObject",
            some=lambda count: _text(some, f"string({count})"),
            none="''",
            unread=_text(words.unreadable_count(counted.what)),
        )
    return _by_word(kind, _text(words.always_protected()), depends, _unknown(_SAYS, kind))


def _by_word(kind: ProtectedKind, always: str, cascading: str, unknown: str) -> str:
    cases = [(_ALWAYS, always)] + ([(_CASCADING, cascading)] if kind.cascading else [])
    return "".join(f"{_SAYS} == '{word}' ? {said} : " for word, said in cases) + unknown


def _labels(kinds: tuple[ProtectedKind, ...]) -> Policy:
    """The policy that denies unknown values of the label."""
    narrow = [kind for kind in kinds if not kind.cascading]
    only_always = " || ".join(
        f"(request.resource.group == '{kind.group}' && request.resource.resource == '{kind.plural}')" for kind in narrow
    )
    variables = {
        "label": _WRITTEN,
        "onlyAlways": only_always or "false",
    }
    every = f"variables.onlyAlways || variables.label in ['{_ALWAYS}', '{_CASCADING}']"
    validations = [_validation(every, _unknown("variables.label", next(kind for kind in kinds if kind.cascading)))]
    if narrow:
        text = _unknown("variables.label", narrow[0])
        validations.append(_validation(f"!variables.onlyAlways || variables.label == '{_ALWAYS}'", text))
    spec = _spec(
        (),
        ("CREATE", "UPDATE"),
        matchConditions=NEW_VALUE,
        variables=[{"name": name, "expression": expression} for name, expression in variables.items()],
        validations=validations,
        # On an error the write is allowed: the value protects in any case.
        failurePolicy="Ignore",
    )
    spec["matchConstraints"] |= {
        "resourceRules": [any_rule("CREATE", "UPDATE")],
        "excludeResourceRules": resource_rules(EXEMPT, ("CREATE", "UPDATE")),
    }
    return Policy(name="labels", kinds=(), spec=spec)


def _unanswered(kinds: tuple[ProtectedKind, ...]) -> Policy:
    """A hint for deletions that only the webhook decides, if no manager responds.

    The API server's own message about a failed webhook is fixed, and does not mention the label.
    """
    text = (
        f"{DELETE_PROTECTION_LABEL}={_CASCADING}: the Unwind manager decides about this deletion. If calling its"
        " webhook failed, no manager is running: start one"
    )
    return Policy(
        name="unanswered",
        kinds=kinds,
        action="Warn",
        spec=_spec(
            kinds,
            ("DELETE",),
            matchConditions=[STANDING, {"name": "cascading", "expression": f"{_SAYS} == '{_CASCADING}'"}],
            validations=[_validation("false", f"{_text(text)} + {_way_out(kinds)}")],
            failurePolicy="Ignore",
        ),
    )


def _spec(
    kinds: tuple[ProtectedKind, ...],
    operations: Iterable[str],
    *,
    validations: list[Object],
    **more: Any,
) -> Object:
    # The API server's defaults are explicit, so that the stored object can be compared.
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": _SELECTED,
            "resourceRules": resource_rules(kinds, operations),
        },
        "validations": validations,
        **more,
    }


def _validation(holds: str, text: str) -> Object:
    return {"expression": holds, "messageExpression": text, "reason": "Forbidden"}


def _unknown(value: str, kind: ProtectedKind) -> str:
    return _text(words.unknown(_LATER, kind), value)


def _text(text: str, *later: str) -> str:
    """A text as a CEL expression, with these expressions for its placeholders."""
    parts = [f"'{part}'" if part else "" for part in text.split(_LATER)]
    pieces = [parts[0]]
    for expression, part in zip(later, parts[1:], strict=True):
        pieces += [expression, part]
    return " + ".join(piece for piece in pieces if piece)


def _way_out(kinds: tuple[ProtectedKind, ...]) -> str:
    """CEL: how to remove the label. Uses the object, not the name of the request, which is empty for deletecollection.
    What is known of the kinds is not evaluated again for each request."""
    groups, plural = {kind.group for kind in kinds}, "request.resource.resource"
    if "" not in groups:
        plural += " + '.' + request.resource.group"
    elif len(groups) > 1:
        plural += " + (request.resource.group == '' ? '' : '.' + request.resource.group)"
    name = "oldObject.metadata.name"
    within = _text(words.way_out(_LATER, _LATER, _LATER), plural, name, "oldObject.metadata.namespace")
    alone = _text(words.way_out(_LATER, "", _LATER), plural, name)
    if len({kind.namespaced for kind in kinds}) > 1:
        return f"(has(oldObject.metadata.namespace) ? {within} : {alone})"
    return within if kinds[0].namespaced else alone


def _way_out_of_any() -> str:
    """The same for any kind: in any group, namespaced or not."""
    unknown = [
        ProtectedKind(group=group, plural="", kind="", versions=(), namespaced=bool(group)) for group in ("", "any")
    ]
    return _way_out(tuple(unknown))
