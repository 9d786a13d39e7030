"""Adding fields to a CRD that somebody else installed, and nothing but adding.

Their schema keeps everything it has: types, rules, versions, conversion. What is added is only what our models have
and theirs lacks; none of it is ever required, so every object that is valid stays valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from unwind.api import names
from unwind.api.schemas import PRESERVE
from unwind.errors import UnwindError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Object = dict[str, Any]
Path = tuple[str, ...]


class Addition(msgspec.Struct, frozen=True):
    """A field that is not in their schema, and where it goes."""

    path: Path
    """Within the schema: properties, spec, properties, …"""
    schema: Object

    @property
    def field(self) -> str:
        """The field as people write it: spec.clusterDeletionBehavior, spec.policyRefs[].tier."""
        written = ""
        parts = iter(self.path)
        for part in parts:
            if part == "items":
                written += "[]"
            else:
                written += f".{next(parts)}"
        return written.removeprefix(".")


def additions(theirs: Object, ours: Object, *, at: Path = ()) -> Iterator[Addition]:
    """The fields that are in our schema and not in theirs."""
    known, wanted = theirs.get("properties"), ours.get("properties")
    # Where they list no properties, or keep what is not listed, something else may stand there already.
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
    """Their schema with the fields added; theirs itself is not touched."""
    whole: Object = msgspec.json.decode(msgspec.json.encode(theirs))
    for addition in added:
        node = whole
        for part in addition.path[:-1]:
            node = node[part]
        node[addition.path[-1]] = addition.schema
    return whole


def adoption(theirs: Object, ours: Object) -> tuple[list[str], list[Object]]:
    """The fields to add to their CRD, and the JSON patch that adds them; both empty if it has them all."""
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
        # Refused if it changed since it was looked at: the paths below count on it.
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
        f"the CRD {crd['metadata']['name']} that is there does not serve {version}",
        remedy=f"install a release of the other system that serves {version}",
    )


def _pointer(base: str, *parts: str) -> str:
    return "/".join([base, *(part.replace("~", "~0").replace("/", "~1") for part in parts)])
