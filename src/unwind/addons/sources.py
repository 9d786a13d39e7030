"""Manifests by the ConfigMap, Secret or Work that holds them (pure)."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import msgspec

from unwind.addons import manifests
from unwind.addons.manifests import Manifest
from unwind.api.resources import SECRETS

if TYPE_CHECKING:
    from unwind.kube.client import Object


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One policyRef and the manifests that it holds."""

    kind: str
    namespace: str
    name: str
    order: int = 0
    """Its place among the sources of the profile."""
    local: bool = False
    """Whether it goes to the management cluster."""
    tier: int = 100
    """Which of two sources of the same profile wins an object that is in both: the lower one."""
    manifests: tuple[Manifest, ...] = ()
    faults: tuple[str, ...] = ()
    """What is wrong with it. What it holds beyond that is not known: nothing may be pruned because of it."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def parse(source: Source, held: Object) -> Source:
    """A source with the manifests that its object holds (pure)."""
    confidential = source.kind == SECRETS.kind
    found: list[Manifest] = []
    faults: list[str] = []
    # Of a Secret all is encoded, of a ConfigMap what is not text.
    fields = {"data": confidential, "binaryData": True}
    for field, encoded in fields.items():
        for key, value in sorted((held.get(field) or {}).items()):
            try:
                text = base64.b64decode(value, validate=True).decode() if encoded else value
            except (binascii.Error, UnicodeDecodeError):
                faults.append(f"key {key}: it is not text")
                continue
            read = manifests.read(text, key, confidential=confidential)
            found += read.manifests
            faults += read.faults
    return msgspec.structs.replace(
        source,
        manifests=tuple(found),
        faults=tuple(f"{source}, {fault}" for fault in faults),
    )
