"""Admission reviews: what the API server asks before it writes, and what it is answered.

`admission.k8s.io/v1`, and `v1beta1`, which says the same: the answer is in the version of the question.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from unwind.api.fields import Model

V1 = "admission.k8s.io/v1"
V1BETA1 = "admission.k8s.io/v1beta1"
_VERSIONS = (V1, V1BETA1)


class AskedKind(Model, frozen=True, kw_only=True):
    """What kind of thing a review is about."""

    group: str = ""
    version: str = ""
    kind: str = ""


class AskedResource(Model, frozen=True, kw_only=True):
    """The resource that a review is about."""

    resource: str = ""
    """Its plural name."""


class User(Model, frozen=True, kw_only=True):
    """Whoever asks, as the API server knows them."""

    username: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """What whoever authenticated them adds: of a service account, the Pod and the node that it asks from."""


class Asked(Model, frozen=True, kw_only=True):
    """The write that somebody wants to make. A dry run is asked about like any other."""

    uid: str = ""
    """Of the question: the answer has to carry it."""
    api_version: str = V1
    """Of the review, not of what it is about."""
    kind: AskedKind = AskedKind()
    """What the rule is for; an object that came in another version was converted to it."""
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
    """As it would be written."""
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    """As it is; null where there was none."""


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
    """What the person who sent the request reads although it passes."""


# Whoever is answered wants the version and the kind, too: they are defaults that are not left out.
class _Answered(Model, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str
    kind: str = "AdmissionReview"
    response: _Answer


_DECODER = msgspec.json.Decoder(_Review)
_ENCODER = msgspec.json.Encoder()


def asked(body: bytes) -> Asked:
    """What is asked. Raises ValueError, with a sentence, for what is no review that is known here."""
    try:
        review = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"This is no AdmissionReview: {error}.") from error
    except RecursionError as error:
        raise ValueError("This is no AdmissionReview: it is nested too deeply.") from error
    request, version = review.request, review.api_version
    if version not in _VERSIONS or request is None or not request.uid:
        said = f"with a request in it: apiVersion is {version or 'nothing'}"
        raise ValueError(f"This is no AdmissionReview of {' or '.join(_VERSIONS)} {said}.")
    return request if request.api_version == version else msgspec.structs.replace(request, api_version=version)


def barely(body: bytes) -> Asked | None:
    """Of a review that cannot be read: which question it is, so that it can be answered; None where not even that."""
    try:
        # Whatever it is made of: a key may stand there twice, and the last one counts.
        review = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match review:
        case {"apiVersion": str(version), "request": {"uid": str(uid)}} if version in _VERSIONS and uid:
            return Asked(uid=uid, api_version=version)
    return None


def allowed(asked: Asked, *, warning: str = "") -> bytes:
    """The answer that lets it pass."""
    return _answer(asked, _Answer(uid=asked.uid, allowed=True, warnings=(warning,) if warning else ()))


def patched(asked: Asked, patch: list[dict[str, Any]]) -> bytes:
    """The answer that lets it pass with changes: a JSON patch of the object."""
    if not patch:
        return allowed(asked)
    encoded = base64.b64encode(_ENCODER.encode(patch)).decode()
    return _answer(asked, _Answer(uid=asked.uid, allowed=True, patch_type="JSONPatch", patch=encoded))


def denied(asked: Asked, message: str) -> bytes:
    """The answer that refuses it; whoever wrote reads the message."""
    return _refused(asked, _Status(code=403, reason="Forbidden", message=message))


def unreadable(asked: Asked, message: str) -> bytes:
    """The answer to what cannot be understood, and so does not pass."""
    return _refused(asked, _Status(code=400, reason="BadRequest", message=message))


def _refused(asked: Asked, status: _Status) -> bytes:
    return _answer(asked, _Answer(uid=asked.uid, allowed=False, status=status))


def _answer(asked: Asked, answer: _Answer) -> bytes:
    return _ENCODER.encode(_Answered(api_version=asked.api_version, response=answer))
