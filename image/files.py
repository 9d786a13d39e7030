"""The files of an image, and reproducible tar archives of them."""

from __future__ import annotations

import io
import tarfile
from pathlib import PurePosixPath

import msgspec


class File(msgspec.Struct, frozen=True):
    """A file, a symbolic link or an empty directory. All belong to root."""

    data: bytes = b""
    mode: int = 0o644
    link: str = ""
    directory: bool = False


Tree = dict[str, File]
"""Files by their path, without a leading slash. Directories above them need no entry."""


def tar(tree: Tree) -> bytes:
    """A tar archive that depends on the tree only: sorted, without times and owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, file in sorted((_directories(tree) | tree).items()):
            entry = tarfile.TarInfo(path)
            entry.mode = file.mode
            if file.directory:
                entry.type = tarfile.DIRTYPE
            elif file.link:
                entry.type, entry.linkname = tarfile.SYMTYPE, file.link
            entry.size = len(file.data)
            archive.addfile(entry, io.BytesIO(file.data))
    return out.getvalue()


def untar(archive: bytes) -> Tree:
    """The files of a tar archive. Hard links become copies; directories are left out."""
    tree: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            path = member.name.removeprefix("./")
            # Without the bits that give a program the rights of its owner.
            mode = member.mode & 0o777
            if member.issym():
                tree[path] = File(link=member.linkname, mode=0o777)
            elif member.isfile() or member.islnk():
                content = members.extractfile(member)
                tree[path] = File(content.read() if content else b"", mode=mode)
            elif not member.isdir():
                raise ValueError(f"{path} is no file, link or directory")
    return tree


def _directories(tree: Tree) -> Tree:
    above = {str(parent) for path in tree for parent in PurePosixPath(path).parents}
    return {path: File(mode=0o755, directory=True) for path in above - {"."}}
