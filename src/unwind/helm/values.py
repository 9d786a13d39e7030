"""The values of a chart that stand in ConfigMaps and Secrets."""

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
    """All values of valuesFrom, in their order, and by key within one: what comes later wins.

    `namespace`: the cluster's, for references that name none. Raises, naming it, if one is missing or is no YAML.
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
        raise TransientError(f"there is no {who}, which values are to come from", remedy="create it") from None
    # Sveltos takes the keys as Go's maps have them, in any order; here it is always the same one.
    texts = [_text(resource is SECRETS, who, key, value) for key, value in sorted((held.get("data") or {}).items())]
    # Before anything else is said of it: a template need not be YAML.
    if _is_template(held) and any("{{" in text for text in texts):
        raise TransientError(f"{who} is a template, which is not supported", remedy="write the values out")
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
        raise TransientError(f"{key!r} of {who} is no text") from None


def _check(who: str, key: str, text: str) -> None:
    try:
        values = safe_yaml.load(text)
    except yaml.YAMLError as error:
        # Where, and not what: the text may be a secret.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise TransientError(f"{key!r} of {who} is no YAML{where}") from None
    if values is not None and not isinstance(values, dict):
        raise TransientError(f"{key!r} of {who} is no mapping, so there are no values in it")
