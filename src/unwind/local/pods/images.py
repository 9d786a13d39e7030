"""Root filesystems from OCI archives."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import msgspec

from unwind.errors import UnwindError
from unwind.local.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINKS = 40
_KEPT = 7 * 24 * 3600


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An unpacked image."""

    digest: str
    layers: tuple[Path, ...]
    """The directories of its files, the topmost first. They are shared, and must not be changed."""
    entrypoint: list[str]
    command: list[str]
    environment: dict[str, str]
    user: int
    group: int

    def inside(self, path: str) -> PurePosixPath:
        """Resolve the symbolic links of a path inside the image, as its own processes would."""
        done, rest, links = PurePosixPath("/"), list(PurePosixPath(path).parts[1:]), 0
        while rest:
            part = rest.pop(0)
            if part == "..":
                done = done.parent
                continue
            link = self._link(done / part)
            if link and links < _LINKS:
                links += 1
                target = PurePosixPath(link)
                done = PurePosixPath("/") if target.is_absolute() else done
                rest = [part for part in target.parts if part != "/"] + rest
            else:
                done /= part
        return done

    def _link(self, path: PurePosixPath) -> Path | None:
        """Where a path points to, if it is a symbolic link."""
        places = (layer / path.relative_to("/") for layer in self.layers)
        found = next((place for place in places if place.exists() or place.is_symlink()), None)
        return found.readlink() if found and found.is_symlink() else None


def unpack_image(archive: Path) -> Image:
    """Unpack the layers of an OCI archive with one image, unless this was done before."""
    with tarfile.open(archive) as files:
        [described] = _json(files, "index.json")["manifests"]
        manifest = _json(files, _blob(described))
        config = _json(files, _blob(manifest["config"]))
        digest: str = described["digest"]
        layers = tuple(_layer(files, layer) for layer in reversed(manifest["layers"]))
    _prune(layers[0].parent)
    given = config["config"]
    user, _, group = given.get("User", "0").partition(":")
    return Image(
        digest=digest,
        layers=layers,
        entrypoint=given.get("Entrypoint") or [],
        command=given.get("Cmd") or [],
        environment=dict(variable.split("=", 1) for variable in given.get("Env") or ()),
        user=int(user),
        group=int(group or user),
    )


def _layer(files: tarfile.TarFile, descriptor: Mapping[str, Any]) -> Path:
    """The directory of a layer. Most images share all layers but the topmost."""
    path = cache_dir() / "pods" / str(descriptor["digest"]).removeprefix("sha256:")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=path.parent) as name:
            draft = Path(name) / "layer"
            draft.mkdir()
            _extract(_file(files, _blob(descriptor)), draft)
            with suppress(OSError):  # another process may have been faster
                draft.rename(path)
    os.utime(path)
    return path


def _prune(directory: Path) -> None:
    """Remove layers that were not used for a week."""
    for layer in directory.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - layer.stat().st_mtime > _KEPT:
                shutil.rmtree(layer, ignore_errors=True)


def repository(reference: str) -> str:
    """The name of an image without registry, tag and digest: `unwind` for `registry:5000/team/unwind:1.0`."""
    return reference.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _extract(layer: IO[bytes], directory: Path) -> None:
    # From Python, tarfile would change what it considers unsafe.
    ended = subprocess.run(
        ["tar", "--extract", "--gzip", "--same-permissions", "--directory", directory],  # noqa: S607
        input=layer.read(),
        capture_output=True,
        check=False,
    )
    if ended.returncode:
        raise UnwindError(
            f"cannot unpack an image into {directory}: {ended.stderr.decode(errors='replace').strip()}",
            remedy="check the free disk space",
        )


def _blob(descriptor: Mapping[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _json(files: tarfile.TarFile, name: str) -> Any:
    return msgspec.json.decode(_file(files, name).read())


def _file(files: tarfile.TarFile, name: str) -> IO[bytes]:
    content = files.extractfile(name)
    if content is None:
        raise UnwindError(f"cannot read an image: {name} is no file", remedy="build the image again with `make image`")
    return content
