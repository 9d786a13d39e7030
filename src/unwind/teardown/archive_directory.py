"""The directory of an archive: documents are written as a whole, once, and never changed."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from unwind.api.unwind import TimelineEntry
from unwind.errors import UnwindError
from unwind.teardown.archive_documents import (
    SUFFIX,
    ArchivedTeardown,
    NotADocumentError,
    decoded,
    encoded,
    file_name,
    plain_uid,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from unwind.api.unwind import Teardown

_TEMPORARY = ".unwind-"
_TIMELINES = "timelines"
# Readable for the group: other Pods that mount the volume have the same fsGroup.
_MODE = 0o640
_STALE = 3600.0
"""Seconds after which a temporary file belongs to a process that was killed."""
_LARGEST = 256 << 20
# File systems without hard links, such as buckets that are mounted with FUSE.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EINVAL)
# A mistake of the person who configured it. Everything else may pass: a full disk, a server that does not answer.
_CONFIGURED = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ELOOP,
    errno.ENAMETOOLONG,
)


class ArchiveError(UnwindError):
    """A document cannot be written or read now."""


class ArchiveOptionError(ArchiveError):
    """The directory cannot be used as an archive, until a person changes that."""


class SkippedFile(NamedTuple):
    """A file in an archive that is no document."""

    name: str
    why: str


class ArchiveDirectory:
    """Documents in a directory. All methods block: call them in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Raise ArchiveOptionError if the directory cannot be used, and ArchiveError if it cannot be used now. It is
        not created: if a volume is not mounted, documents would be lost with the container."""
        name = f"{_TEMPORARY}check-{uuid.uuid4().hex}"
        probe = b"Written by unwind run --archive to check the directory.\n"
        try:
            if not stat.S_ISDIR(self.path.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            try:
                self._put(self.path, name, probe)
                if _content(self.path / name) != probe:
                    raise ArchiveOptionError(
                        f"cannot archive to {self.path}: a file has another content than was written",
                        remedy="use a directory on another file system",
                    )
            finally:
                (self.path / name).unlink(missing_ok=True)
            self._clean()
        except OSError as error:
            kind = ArchiveOptionError if error.errno in _CONFIGURED else ArchiveError
            remedy = (
                "--archive needs an existing directory that this process may write, with rename"
                if kind is ArchiveOptionError
                else "check the volume; will retry"
            )
            raise kind(f"cannot archive to {self.path}: {error.strerror or error}", remedy=remedy) from error

    def has(self, teardown: Teardown) -> bool:
        """Whether the document of a Teardown exists. Raises ArchiveError if its file is something else."""
        path = self.path / file_name(teardown)
        try:
            found = decoded(_content(path))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed("read", path, error) from error
        except NotADocumentError as error:
            raise ArchiveError(
                f"cannot archive Teardown {teardown.metadata.name}: {path} exists: {error.what}",
                remedy="move that file away; it is not overwritten",
            ) from error
        if found.teardown.metadata.uid != teardown.metadata.uid:
            raise ArchiveError(
                f"cannot archive Teardown {teardown.metadata.name}: {path} is the document of another Teardown",
                remedy="move that file away; it is not overwritten",
            )
        return True

    def write(self, document: ArchivedTeardown) -> None:
        """Write a document, unless another replica has written it."""
        name = file_name(document.teardown)
        try:
            self._put(self.path, name, encoded(document))
        except FileExistsError:
            self.has(document.teardown)  # raises if it is not that
        except OSError as error:
            raise _failed("write", self.path / name, error) from error

    # The entries that the timelines of running teardowns have no longer

    def keep_entries(self, uid: str, entries: Iterable[TimelineEntry]) -> None:
        """Keep entries of a timeline until the document of the Teardown is written."""
        content = msgspec.json.encode(list(entries))
        directory = self.path / _TIMELINES / plain_uid(uid)
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            # Named by its content: replicas that keep the same entries write the same file.
            self._put(directory, hashlib.sha256(content).hexdigest()[:32] + SUFFIX, content)
        except FileExistsError:
            pass
        except OSError as error:
            raise _failed("write", directory, error) from error

    def kept_entries(self, uid: str) -> list[TimelineEntry]:
        """The kept entries of a Teardown. A damaged file is skipped: the document counts what is missing."""
        directory = self.path / _TIMELINES / plain_uid(uid)
        found: list[TimelineEntry] = []
        try:
            for path in sorted(directory.iterdir()):
                if path.suffix == SUFFIX:
                    with suppress(msgspec.DecodeError, NotADocumentError, FileNotFoundError):
                        found += msgspec.json.decode(_content(path), type=list[TimelineEntry])
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed("read", directory, error) from error
        return found

    def discard_entries(self, uid: str) -> None:
        """Delete the kept entries of a Teardown whose document is written."""
        directory = self.path / _TIMELINES / plain_uid(uid)
        # What is left over does no harm, and another replica may delete it at the same time.
        with suppress(OSError):
            for path in directory.iterdir():
                path.unlink()
            directory.rmdir()

    # Readers

    def documents(self) -> Iterator[ArchivedTeardown | SkippedFile]:
        """All documents, by the names of their files, and the files that are none. Raises ArchiveError if the
        directory cannot be read."""
        try:
            paths = sorted(self.path.iterdir())
        except OSError as error:
            raise ArchiveError(
                f"cannot read the archive {self.path}: {error.strerror or error}",
                remedy="--archive needs the directory of `unwind run --archive`",
            ) from error
        for path in paths:
            if path.name.startswith(".") or path.is_dir():
                continue
            try:
                yield decoded(_content(path))
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                yield SkippedFile(path.name, error.strerror or str(error))
            except NotADocumentError as error:
                yield SkippedFile(path.name, str(error))

    def _put(self, directory: Path, name: str, content: bytes) -> None:
        """Write a file as a whole, durably, under a name that does not exist. Raises FileExistsError."""
        temporary = directory / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _publish(temporary, directory / name)
        finally:
            with suppress(OSError):  # it was renamed, or the directory cannot be written any more
                temporary.unlink()
        _sync(directory)

    def _clean(self) -> None:
        """Delete temporary files of processes that were killed."""
        for path in self.path.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):  # another replica deletes it at the same time
                if time.time() - path.lstat().st_mtime > _STALE:
                    path.unlink()


def _publish(temporary: Path, path: Path) -> None:
    """Give a file its name, if no file has it."""
    try:
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        return
    # Between the check and the rename, another replica may write the same document: it is replaced by its equal.
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    temporary.rename(path)


def _sync(directory: Path) -> None:
    """Make the name of a new file durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have nothing to sync for a directory.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes:
    """The content of a regular file. Anything else is refused: reading a pipe would never end."""
    # Not blocking: opening a pipe waits for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode):
            raise NotADocumentError("not a regular file")
        if seen.st_size > _LARGEST:
            raise NotADocumentError(f"larger than {_LARGEST >> 20} MiB")
        return file.read()


def _failed(what: str, path: Path, error: OSError) -> ArchiveError:
    return ArchiveError(f"cannot {what} {path}: {error.strerror or error}", remedy="check the volume; will retry")
