"""The software bill of materials of the image: CycloneDX 1.6."""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from image.lock import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from image.lock import Locked


def document(packages: Iterable[Locked], *, helm: Path, go: Path, digest: str, version: str, arch: str) -> bytes:
    """The document for an image with this digest. It depends on nothing else."""
    components = [*map(_package, packages), *_go_modules(run(go, "version", "-m", helm))]
    described = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": "unwind",
                "version": version,
                "purl": f"pkg:oci/unwind@{quote(digest, safe='')}?arch={arch}&tag={version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": sorted(components, key=lambda component: component["purl"]),
    }
    return json.dumps(described, indent=1, sort_keys=True).encode() + b"\n"


def _package(package: Locked) -> dict[str, Any]:
    version = quote(package.version, safe="")
    if package.kind == "deb":
        purl = f"pkg:deb/debian/{quote(package.name)}@{version}?arch={package.arch}&distro=debian-12"
    else:
        purl = f"pkg:pypi/{package.name}@{version}"
    return _component(package.name, package.version, purl, ("SHA-256", package.sha256))


def _go_modules(said: str) -> Iterator[dict[str, Any]]:
    """The modules in a program, as `go version -m` lists them."""
    lines = [line.split() for line in said.splitlines()]
    toolchain = lines[0][-1].removeprefix("go")
    yield _component("stdlib", toolchain, f"pkg:golang/stdlib@{toolchain}")
    for fields in lines[1:]:
        # A module that is replaced has no checksum; its replacement follows.
        if fields[0] in ("mod", "dep", "=>") and len(fields) == 4:
            _, name, version, summed = fields
            purl = f"pkg:golang/{quote(name)}@{quote(version, safe='')}"
            # The checksum of a Go module is over the list of its files.
            digest = base64.b64decode(summed.removeprefix("h1:")).hex()
            yield _component(name, version, purl, ("SHA-256", digest))


def _component(name: str, version: str, purl: str, checksum: tuple[str, str] | None = None) -> dict[str, Any]:
    hashes = {"hashes": [{"alg": checksum[0], "content": checksum[1]}]} if checksum else {}
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **hashes}
