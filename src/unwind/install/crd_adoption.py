"""Adopt CRDs that another system installed: add missing fields to their schema and change nothing else.

The existing schema keeps everything: types, rules, versions, conversion. Only fields that our models have and the
schema lacks are added. They are never required, so every valid object stays valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import names
from unwind.api.crds import PRESERVE
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Object = dict[str, Any]
Path = tuple[str, ...]


class Addition(msgspec.Struct, frozen=True):
    """A field that the schema lacks, and its place."""

    path: Path
    """The path within the schema: properties, spec, properties, …"""
    schema: Object

    @property
    def field(self) -> str:
        """The field path in the usual notation: spec.clusterDeletionBehavior, spec.policyRefs[].tier."""
        written = ""
        parts = iter(self.path)
        for part in parts:
            if part == "items":
                written += "[]"
            else:
                written += f".{next(parts)}"
        return written.removeprefix(".")


def additions(theirs: Object, ours: Object, *, at: Path = ()) -> Iterator[Addition]:
    """The fields that are in our schema and not in the existing one."""
    known, wanted = theirs.get("properties"), ours.get("properties")
    # Without listed properties, or with unknown fields preserved, another field of this name may be in use already.
    if known and wanted and not theirs.get(PRESERVE):
        for name, schema in wanted.items():
            path = (*at, "properties", name)
            if name not in known:
                yield Addition(path, schema)
            elif path != ("properties", "metadata"):
                yield from additions(known[name], schema, at=path)
    if isinstance(theirs.get("items"), dict) and isinstance(ours.get("items"), dict):
        yield from additions(theirs["items"], ours["items"], at=(*at, "items"))


def with_additions(theirs: Object, added: Sequence[Addition]) -> Object:
    """A copy of the existing schema with the fields added."""
    whole: Object = msgspec.json.decode(msgspec.json.encode(theirs))
    for addition in added:
        node = whole
        for part in addition.path[:-1]:
            node = node[part]
        node[addition.path[-1]] = addition.schema
    return whole


def adoption(theirs: Object, ours: Object) -> tuple[list[str], list[Object]]:
    """The fields to add to an existing CRD, and the JSON patch that adds them; both empty if none is missing."""
    version = ours["spec"]["versions"][0]
    place, served = _served(theirs, version["name"])
    schema = served.get("schema", {}).get("openAPIV3Schema", {})
    added = list(additions(schema, version["schema"]["openAPIV3Schema"]))
    if not added:
        return [], []
    base = f"/spec/versions/{place}/schema/openAPIV3Schema"
    metadata = theirs["metadata"]
    fields = [addition.field for addition in added]
    before = (metadata.get("annotations") or {}).get(names.ADOPTED_FIELDS_ANNOTATION, "")
    noted = sorted({*filter(None, before.split(",")), *fields})
    patch: list[Object] = [
        # The patch must fail if the CRD changed since it was read, because the paths below depend on it.
        {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    ]
    if not metadata.get("annotations"):
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    patch.append(
        {
            "op": "add",
            "path": _pointer("/metadata/annotations", names.ADOPTED_FIELDS_ANNOTATION),
            "value": ",".join(noted),
        }
    )
    patch += [{"op": "add", "path": _pointer(base, *addition.path), "value": addition.schema} for addition in added]
    return fields, patch


def _served(crd: Object, version: str) -> tuple[int, Object]:
    for place, candidate in enumerate(crd["spec"]["versions"]):
        if candidate["name"] == version and candidate.get("served"):
            return place, candidate
    raise UnwindError(
        f"cannot adopt CRD {crd['metadata']['name']}: it does not serve version {version}",
        remedy=f"install a release of its system that serves {version}",
    )


def _pointer(base: str, *parts: str) -> str:
    return "/".join([base, *(part.replace("~", "~0").replace("/", "~1") for part in parts)])
