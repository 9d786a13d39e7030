"""An image as OCI archive: https://github.com/opencontainers/image-spec."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from image.files import File, Tree, tar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_EPOCH = "1970-01-01T00:00:00Z"


class Layer(msgspec.Struct, frozen=True):
    """A part of the root filesystem: a compressed tar archive, and the digest of the uncompressed one."""

    created_by: str
    data: bytes
    diff_id: str


def layer(created_by: str, data: bytes) -> Layer:
    """A layer of a compressed tar archive."""
    return Layer(created_by, data, hashlib.sha256(gzip.decompress(data)).hexdigest())


def compressed(tree: Tree) -> bytes:
    """The compressed tar archive of a tree."""
    return gzip.compress(tar(tree), 6, mtime=0)


def write(
    path: Path, layers: Sequence[Layer], *, arch: str, tag: str, config: Mapping[str, Any], labels: Mapping[str, str]
) -> str:
    """Write an archive, and return the digest of the image's manifest."""
    blobs: Tree = {}

    def add(media_type: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = File(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    settings = {
        "created": _EPOCH,
        "architecture": arch,
        "os": "linux",
        "config": {**config, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.diff_id}" for layer in layers]},
        "history": [{"created": _EPOCH, "created_by": layer.created_by} for layer in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": add(_CONFIG, _json(settings)),
        "layers": [add(_LAYER, layer.data) for layer in layers],
        "annotations": labels,
    }
    described = add(_MANIFEST, _json(manifest)) | {
        "platform": {"architecture": arch, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }
    blobs["index.json"] = File(_json({"schemaVersion": 2, "manifests": [described]}))
    blobs["oci-layout"] = File(_json({"imageLayoutVersion": "1.0.0"}))
    path.write_bytes(tar(blobs))
    return str(described["digest"])


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
