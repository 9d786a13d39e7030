"""The archive and the manifest by which krew installs the kubectl plugin."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import yaml

from plugin import krew

if TYPE_CHECKING:
    from pathlib import Path


def test_the_archive_holds_the_program_alone_and_is_the_same_each_time(tmp_path: Path) -> None:
    program = tmp_path / "kubectl-unwind"
    program.write_bytes(b"#!/usr/bin/env python3\n")
    packed = krew.archive(program)
    assert packed == krew.archive(program)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        [entry] = tar.getmembers()
        assert (entry.name, entry.mode, entry.mtime, entry.uid) == ("kubectl-unwind", 0o755, 0, 0)


def test_the_manifest_names_the_archive_by_its_checksum(tmp_path: Path) -> None:
    program = tmp_path / "kubectl-unwind"
    program.write_bytes(b"#!/usr/bin/env python3\n")
    krew.main(program, "https://downloads.example.com/unwind/")
    [packed] = tmp_path.glob("*.tar.gz")
    [platform] = yaml.safe_load((tmp_path / "krew.yaml").read_text())["spec"]["platforms"]
    assert platform["sha256"] == hashlib.sha256(packed.read_bytes()).hexdigest()
    assert platform["uri"] == f"https://downloads.example.com/unwind/{packed.name}"
    assert platform["bin"] == "kubectl-unwind"
