"""Reads the values of a chart from ConfigMaps and Secrets (valuesFrom)."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING

import yaml

from unwind import safe_yaml
from unwind.api.names import SVELTOS_TEMPLATE_ANNOTATION
from unwind.api.resources import CONFIG_MAPS, SECRETS
from unwind.deleters.outcomes import TransientError
from unwind.kube.errors import NotFoundError

if TYPE_CHECKING:
    from unwind.api.sveltos import HelmChart, ValuesFrom
    from unwind.kube.client import Client, Object


async def collect(client: Client, asked: HelmChart, *, namespace: str) -> tuple[str, ...]:
    """All values of valuesFrom in order, sorted by key within one object: later ones win.

    `namespace`: the cluster's, for references without a namespace. Raises if an object is missing or is not YAML.
    """
    found: list[str] = []
    for item in asked.values_from:
        found += await _of(client, item, item.namespace or namespace)
    return tuple(found)


async def _of(client: Client, reference: ValuesFrom, namespace: str) -> list[str]:
    resource = SECRETS if reference.kind == SECRETS.kind else CONFIG_MAPS
    who = f"{reference.kind} {namespace}/{reference.name}"
    try:
        held = await client.get(resource, reference.name, namespace=namespace)
    except NotFoundError:
        if reference.optional:
            return []
        raise TransientError(f"cannot read values: {who} not found", remedy="create it") from None
    # Sveltos uses the random order of Go maps; here the order is stable.
    texts = [_text(resource is SECRETS, who, key, value) for key, value in sorted((held.get("data") or {}).items())]
    # Checked first: a template need not be YAML.
    if _is_template(held) and any("{{" in text for text in texts):
        raise TransientError(f"cannot read values: templates are not supported ({who})", remedy="use plain values")
    for key, text in zip(sorted(held.get("data") or {}), texts, strict=True):
        await asyncio.to_thread(_check, who, key, text)
    return texts


def _is_template(held: Object) -> bool:
    return SVELTOS_TEMPLATE_ANNOTATION in (held["metadata"].get("annotations") or {})


def _text(secret: bool, who: str, key: str, value: str) -> str:
    if not secret:
        return value
    try:
        return base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise TransientError(
            f"cannot read values: key {key!r} of {who} is not valid UTF-8 text", remedy="correct the key"
        ) from None


def _check(who: str, key: str, text: str) -> None:
    try:
        values = safe_yaml.load(text)
    except yaml.YAMLError as error:
        # Only the position: the text may be confidential.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise TransientError(
            f"cannot read values: key {key!r} of {who} is not YAML{where}", remedy="correct the key"
        ) from None
    if values is not None and not isinstance(values, dict):
        raise TransientError(
            f"cannot read values: key {key!r} of {who} is not a mapping", remedy="write its values as key: value"
        )
