"""Admission reviews: what the API server asks before it writes, and what it is answered. `admission.k8s.io/v1`."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from unwind.api.fields import Model
from unwind.api.meta import Reference

_API_VERSION = "admission.k8s.io/v1"


class User(Model, frozen=True, kw_only=True):
    """Whoever asks, as the API server knows them."""

    username: str = ""


class Asked(Model, frozen=True, kw_only=True):
    """The write that somebody wants to make. A dry run is asked about like any other."""

    uid: str = ""
    """Of the question: the answer has to carry it."""
    kind: Reference = Reference()
    """What the rule is for; an object that came in another version was converted to it."""
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


# Whoever is answered wants the version and the kind, too: they are defaults that are not left out.
class _Answered(Model, frozen=True, kw_only=True, omit_defaults=False):
    api_version: str = _API_VERSION
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
    if review.api_version != _API_VERSION or review.request is None or not review.request.uid:
        said = review.api_version or "nothing"
        raise ValueError(f"This is no AdmissionReview of {_API_VERSION} with a request in it: apiVersion is {said}.")
    return review.request


def allowed(asked: Asked) -> bytes:
    """The answer that lets it pass."""
    return _ENCODER.encode(_Answered(response=_Answer(uid=asked.uid, allowed=True)))


def patched(asked: Asked, patch: list[dict[str, Any]]) -> bytes:
    """The answer that lets it pass with changes: a JSON patch of the object."""
    if not patch:
        return allowed(asked)
    encoded = base64.b64encode(_ENCODER.encode(patch)).decode()
    answer = _Answer(uid=asked.uid, allowed=True, patch_type="JSONPatch", patch=encoded)
    return _ENCODER.encode(_Answered(response=answer))


def denied(asked: Asked, message: str) -> bytes:
    """The answer that refuses it; whoever wrote reads the message."""
    status = _Status(code=403, reason="Forbidden", message=message)
    return _ENCODER.encode(_Answered(response=_Answer(uid=asked.uid, allowed=False, status=status)))
