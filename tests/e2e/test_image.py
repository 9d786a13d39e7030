"""The container image: a valid OCI archive, with Python, its packages, helm and Unwind, and nothing else."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from image import build, helm, lock
from unwind.local.paths import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

# The first build downloads packages and compiles helm.
pytestmark = pytest.mark.timeout(1800)
NATIVE = helm.native()


class Archive:
    """A read OCI archive. Every blob has the digest of its name."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as members:
            self._files = {member.name: _content(members, member) for member in members if member.isfile()}
        assert self.json("oci-layout") == {"imageLayoutVersion": "1.0.0"}
        [self.described] = self.json("index.json")["manifests"]
        self.manifest = json.loads(self.blob(self.described))
        self.config = json.loads(self.blob(self.manifest["config"]))
        self.layers = [gzip.decompress(self.blob(layer)) for layer in self.manifest["layers"]]
        blobs = {self.described["digest"], self.manifest["config"]["digest"]}
        blobs |= {layer["digest"] for layer in self.manifest["layers"]}
        assert set(self._files) == {"oci-layout", "index.json", *(f"blobs/sha256/{name[7:]}" for name in blobs)}

    def json(self, name: str) -> Any:
        return json.loads(self._files[name])

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        data = self._files[f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"]
        assert descriptor["size"] == len(data)
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        return data

    def members(self) -> dict[str, tarfile.TarInfo]:
        found: dict[str, tarfile.TarInfo] = {}
        for layer in self.layers:
            with tarfile.open(fileobj=io.BytesIO(layer)) as members:
                found |= {member.name: member for member in members}
        return found


def _content(members: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = members.extractfile(member)
    assert content
    return content.read()


@pytest.fixture(scope="module")
def archive(image: build.Image) -> Archive:
    return Archive(image.archive)


def test_the_archive_is_valid_and_runs_unwind_as_a_user_without_rights(archive: Archive, image: build.Image) -> None:
    config = archive.config["config"]
    assert archive.described["platform"] == {"architecture": NATIVE, "os": "linux"}
    assert archive.config["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in archive.layers
    ]
    assert config["User"] == "65532:65532"
    assert [*config["Entrypoint"], *config["Cmd"]] == ["/usr/local/bin/unwind", "run"]
    assert image.archive.stat().st_size < 200_000_000


def test_it_contains_python_helm_and_unwind_and_no_other_program(archive: Archive) -> None:
    files = {path: member for path, member in archive.members().items() if not member.isdir()}
    programs = {path for path in files if re.match(r"(usr/(local/)?)?s?bin/", path)}
    assert programs == {"usr/bin/python3.11", "usr/local/bin/helm", "usr/local/bin/unwind"}
    executable = {path for path, member in files.items() if member.isfile() and member.mode & 0o111}
    assert {path for path in executable - programs if not re.search(r"\.(py|so)\b", path)} == set()
    assert "usr/local/lib/python3.11/dist-packages/unwind/cli/__init__.py" in files
    packages = {path.rpartition("/")[2] for path in files if path.startswith("var/lib/dpkg/status.d/")}
    assert packages == {package.name for package in lock.read("deb", NATIVE)}
    distributions = {match[1].lower().replace("_", "-") for path in files if (match := _METADATA.search(path))}
    assert distributions == {package.name for package in lock.read("wheel", NATIVE)} | {"kube-unwind"}


_METADATA = re.compile(r"dist-packages/([^/]+)-[^-/]+\.dist-info/METADATA$")


def test_no_file_gives_rights_or_belongs_to_a_user(archive: Archive) -> None:
    members = archive.members()
    assert {path for path, member in members.items() if member.mode & 0o6000} == set()
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}
    writable = {path for path, member in members.items() if member.mode & 0o002 and not member.issym()}
    assert writable == {"tmp"}


def test_the_bill_of_materials_lists_every_package_with_its_checksum(image: build.Image, archive: Archive) -> None:
    bill = json.loads(image.bill.read_bytes())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["purl"].startswith(
        f"pkg:oci/unwind@{archive.described['digest'].replace(':', '%3A')}"
    )
    listed = {component["name"]: component for component in bill["components"]}
    for package in (*lock.read("deb", NATIVE), *lock.read("wheel", NATIVE)):
        assert listed[package.name]["version"] == package.version
        assert listed[package.name]["hashes"] == [{"alg": "SHA-256", "content": package.sha256}]
    assert "helm.sh/helm/v3" in listed
    assert "pkg:golang/stdlib@" in listed["stdlib"]["purl"]


def test_two_builds_have_the_same_digest(image: build.Image, archive: Archive, tmp_path: Path) -> None:
    assert build.build(NATIVE, tmp_path) == archive.described["digest"]
    assert (tmp_path / image.archive.name).read_bytes() == image.archive.read_bytes()
    assert (tmp_path / image.bill.name).read_bytes() == image.bill.read_bytes()


@pytest.mark.soak
def test_a_build_without_any_cached_layer_has_the_same_digest(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = cache_dir() / "image"
    (tmp_path / "image").mkdir()
    for kept in (*cached.glob("packages"), *cached.glob("go-*")):
        (tmp_path / "image" / kept.name).symlink_to(kept)
    monkeypatch.setenv("UNWIND_CACHE_DIR", str(tmp_path))
    assert build.build(NATIVE, tmp_path) == archive.described["digest"]


@pytest.mark.soak
@pytest.mark.parametrize("arch", sorted(set(lock.MACHINES) - {NATIVE}))
def test_images_for_other_architectures_have_the_same_files(arch: str, archive: Archive) -> None:
    other = Archive(build.ensure(arch).archive)
    assert other.described["platform"]["architecture"] == arch

    def modules(members: dict[str, tarfile.TarInfo]) -> set[str]:
        return {path for path in members if path.endswith((".py", ".pyc")) and "_sysconfigdata" not in path}

    assert modules(other.members()) == modules(archive.members())
    assert {path for path in other.members() if "/bin/" in path} == {
        path for path in archive.members() if "/bin/" in path
    }
