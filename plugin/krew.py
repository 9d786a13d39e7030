"""Write the archive and the manifest by which krew installs the kubectl plugin: `python -m plugin.krew FILE URL`.

The archive is the same for the same file, so that its checksum can be verified. Nothing is published here: URL is the
place that the archive will be uploaded to.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import platform
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(program: Path) -> bytes:
    """A tar.gz archive with the program and nothing else."""
    packed = io.BytesIO()
    # Without a time and a name in the header of gzip, the same content gives the same bytes.
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        entry = tarfile.TarInfo(program.name)
        content = program.read_bytes()
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def manifest(*, release: str, uri: str, sha256: str, system: str, architecture: str, program: str) -> dict[str, Any]:
    """The krew manifest of a plugin for one platform."""
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "unwind"},
        "spec": {
            "version": f"v{release}",
            "shortDescription": "Delete clusters, add-ons and resources in order",
            "description": (
                "Preview what a deletion would remove, delete an object with its dependents in order, and see why"
                " something still exists and what was left behind. Deletions need the manager of Unwind in the cluster."
            ),
            # The packages are compiled for the Python that built the plugin.
            "caveats": f"Requires Python {sys.version_info[0]}.{sys.version_info[1]} on the PATH.",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": system, "arch": architecture}},
                    "uri": uri,
                    "sha256": sha256,
                    "bin": program,
                }
            ],
        },
    }


def main(program: Path, url: str) -> None:
    """Write both files beside the program."""
    release, system = version("kube-unwind"), platform.system().lower()
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    packed = archive(program)
    path = program.with_name(f"kubectl-unwind-{release}-{system}-{architecture}.tar.gz")
    path.write_bytes(packed)
    described = manifest(
        release=release,
        uri=f"{url.rstrip('/')}/{path.name}",
        sha256=hashlib.sha256(packed).hexdigest(),
        system=system,
        architecture=architecture,
        program=program.name,
    )
    about = program.with_name("krew.yaml")
    about.write_text(yaml.safe_dump(described, sort_keys=False))
    for written in (program, path, about):
        sys.stdout.write(f"{written}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
