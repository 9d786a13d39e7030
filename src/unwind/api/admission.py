"""API types of AdmissionReview: decode requests, encode responses.

Reads `admission.k8s.io/v1` and the identical `v1beta1`; the response has the version of the request.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import unwind
from unwind.api.fields import Model
from unwind.api.resources import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS
from unwind.api.rights import Right

if TYPE_CHECKING:
    from collections.abc import Mapping

    from unwind.api.resources import Resource


V1 = "admission.k8s.io/v1"
V1BETA1 = "admission.k8s.io/v1beta1"
_VERSIONS = (V1, V1BETA1)


class AskedKind(Model, frozen=True, kw_only=True):
    """The group, version and kind that a request is about."""

    group: str = ""
    version: str = ""
    kind: str = ""


class AskedResource(Model, frozen=True, kw_only=True):
    """The resource that a request is about."""

    resource: str = ""
    """Plural name of the resource."""


class User(Model, frozen=True, kw_only=True):
    """The authenticated user of a request."""

    username: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Extra attributes from authentication: for a service account, the Pod and node of the client."""


class Asked(Model, frozen=True, kw_only=True):
    """An admission request. Dry runs are reviewed like any other request."""

    uid: str = ""
    """Uid of the review; the response must repeat it."""
    api_version: str = V1
    """API version of the review, not of the object."""
    kind: AskedKind = AskedKind()
    """The kind that the webhook rule matches. An object of another version was converted to it."""
    resource: AskedResource = AskedResource()
    sub_resource: str = ""
    namespace: str = ""
    operation: str = ""
    """CREATE, UPDATE, DELETE or CONNECT."""
    user_info: User = User()
    dry_run: bool = False
    options: msgspec.Raw = msgspec.Raw(b"null")
    """CreateOptions, UpdateOptions, PatchOptions or DeleteOptions."""
    object: msgspec.Raw = msgspec.Raw(b"null")
    """The new object."""
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    """The existing object; null if there is none."""


class _Review(Model, frozen=True, kw_only=True):
    api_version: str = ""
    request: Asked | None = None


class _Status(Model, frozen=True, kw_only=True):
    code: int
    reason: str
    message: str


class _Answer(Model, frozen=True, kw_only=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    patch_type: str = ""
    patch: str = ""
    """A JSON patch in base64."""
    warnings: tuple[str, ...] = ()
    """Warnings that the API server returns to the client of an allowed request."""


# The response must contain apiVersion and kind, so default values are not omitted here.
class _Answered(Model, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str
    kind: str = "AdmissionReview"
    response: _Answer


_DECODER = msgspec.json.Decoder(_Review)
_ENCODER = msgspec.json.Encoder()


def admission_request(body: bytes) -> Asked:
    """The admission request. Raises ValueError if the body is not a supported AdmissionReview."""
    try:
        review = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot decode AdmissionReview: {error}") from error
    except RecursionError as error:
        raise ValueError(
            "cannot decode AdmissionReview: the object in the request is nested too deeply; reduce its nesting"
        ) from error
    request, version = review.request, review.api_version
    if version not in _VERSIONS or request is None or not request.uid:
        versions = " or ".join(_VERSIONS)
        raise ValueError(
            f"cannot decode AdmissionReview: expected {versions} with a request, got apiVersion {version!r}; "
            "correct admissionReviewVersions in the webhook configuration"
        )
    return request if request.api_version == version else msgspec.structs.replace(request, api_version=version)


def barely(body: bytes) -> Asked | None:
    """The uid and version of a review that cannot be decoded, so that it can be answered; None without a uid."""
    try:
        # Tolerates anything else in the body. Duplicate keys are possible; the last one counts.
        review = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match review:
        case {"apiVersion": str(version), "request": {"uid": str(uid)}} if version in _VERSIONS and uid:
            return Asked(uid=uid, api_version=version)
    return None


def allowed(asked: Asked, *, warning: str = "") -> bytes:
    """A response that allows the request."""
    return _answer(asked, _Answer(uid=asked.uid, allowed=True, warnings=(warning,) if warning else ()))


def patched(asked: Asked, patch: list[dict[str, Any]]) -> bytes:
    """A response that allows the request and applies a JSON patch to the object."""
    if not patch:
        return allowed(asked)
    encoded = base64.b64encode(_ENCODER.encode(patch)).decode()
    return _answer(asked, _Answer(uid=asked.uid, allowed=True, patch_type="JSONPatch", patch=encoded))


def annotation_patch(annotations: Mapping[str, str], name: str, wanted: str | None) -> list[dict[str, Any]]:
    """The JSON patch that sets or removes an annotation of an object with these annotations."""
    if annotations.get(name) == wanted:
        return []
    pointer = "/metadata/annotations/" + name.replace("/", "~1")
    if wanted is None:
        return [{"op": "remove", "path": pointer}]
    if not annotations:  # metadata.annotations may not exist
        return [{"op": "add", "path": "/metadata/annotations", "value": {name: wanted}}]
    return [{"op": "add", "path": pointer, "value": wanted}]


def denied(asked: Asked, message: str) -> bytes:
    """A response that denies the request with this message."""
    return _refused(asked, _Status(code=403, reason="Forbidden", message=message))


def unreadable(asked: Asked, message: str) -> bytes:
    """A response that denies a request that cannot be decoded."""
    return _refused(asked, _Status(code=400, reason="BadRequest", message=message))


def _refused(asked: Asked, status: _Status) -> bytes:
    return _answer(asked, _Answer(uid=asked.uid, allowed=False, status=status))


def _answer(asked: Asked, answer: _Answer) -> bytes:
    return _ENCODER.encode(_Answered(api_version=asked.api_version, response=answer))


# Common parts of Unwind's admission policies: policy with binding, resource rules, CEL check for the manager.

Object = dict[str, Any]

MANAGE = Right(
    unwind.GROUP,
    (unwind.TEARDOWNS.plural,),
    ("manage",),
    why="A verb of Unwind's own, by which its admission policies recognise the manager. It is sent in no request.",
)
"""The custom verb that makes a user the manager. Only the manager's role grants it."""
BY_MANAGER = f"authorizer.group('{unwind.GROUP}').resource('{unwind.TEARDOWNS.plural}').check('manage').allowed()"
"""CEL: whether the request comes from a manager. Several managers may share a cluster, so no user name is compared.

A user with the verb `*` on everything (cluster-admin) counts as the manager, too: such a user could do all of it
without Unwind.
"""


def policy_and_binding(name: str, spec: Object, **binding: Any) -> list[Object]:
    """A ValidatingAdmissionPolicy that fails closed, and the binding that makes it deny.

    The API server's defaults are written out, because the manager compares existing policies with this.
    """
    defaults = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    return [
        _object(VALIDATING_ADMISSION_POLICIES, name)
        | {"spec": {"failurePolicy": "Fail"} | spec | {"matchConstraints": defaults | spec["matchConstraints"]}},
        _object(VALIDATING_ADMISSION_POLICY_BINDINGS, name)
        | {"spec": {"policyName": name, "validationActions": ["Deny"]} | binding},
    ]


def resource_rule(resource: Resource, *operations: str) -> Object:
    """The rule that matches requests for a resource, in every version."""
    return {
        "apiGroups": [resource.group],
        "apiVersions": ["*"],
        "resources": [resource.plural],
        "operations": list(operations),
        "scope": "*",
    }


def _object(resource: Resource, name: str) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
