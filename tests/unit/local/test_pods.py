"""The parts of the Pod agent that need no control plane: names of images, paths inside them, variables, conditions."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any, cast

import pytest

from unwind.kube.errors import UnreachableError
from unwind.local.pods.images import Image, repository
from unwind.local.pods.pod import PodRunner, _conditions
from unwind.local.pods.sandbox import Mount, Sandbox
from unwind.local.pods.volumes import expand
from unwind.testing.clock import StillClock


def _image(*layers: Path) -> Image:
    return Image(digest="sha256:0", layers=layers, entrypoint=[], command=[], environment={}, user=65532, group=65532)


@pytest.mark.parametrize(
    "reference",
    ["unwind", "unwind:1.0", "team/unwind@sha256:00", "registry.test:5000/team/unwind:1.0@sha256:00"],
)
def test_an_image_is_found_by_the_last_part_of_its_name(reference: str) -> None:
    assert repository(reference) == "unwind"


def test_links_of_an_image_lead_to_paths_inside_of_it(tmp_path: Path) -> None:
    top, base = tmp_path / "top", tmp_path / "base"
    for layer in (top, base):
        (layer / "var").mkdir(parents=True)
    (base / "var" / "run").symlink_to("/run")
    (base / "run").mkdir()
    (base / "out").symlink_to("../../../etc")
    (base / "loop").symlink_to("loop")
    (base / "file").symlink_to("/elsewhere")
    (top / "file").write_text("hides the link below")
    image = _image(top, base)
    assert image.inside("/file") == PurePosixPath("/file")
    assert image.inside("/var/run/secrets/token") == PurePosixPath("/run/secrets/token")
    assert image.inside("/out/passwd") == PurePosixPath("/etc/passwd")
    assert image.inside("/loop/x") == PurePosixPath("/loop/x")


def test_variables_are_expanded_as_by_the_kubelet() -> None:
    variables = {"NAME": "one"}
    assert expand("$(NAME)-$(OTHER)-$$(NAME)-$NAME", variables) == "one-$(OTHER)-$(NAME)-$NAME"


def test_outer_mounts_come_before_inner_ones_and_the_root_becomes_read_only_last(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    sandbox = Sandbox(
        image=_image(tmp_path),
        argv=["/usr/local/bin/unwind", "run"],
        environment={},
        mounts=[Mount(volume, "/data/inner"), Mount(None, "/data", read_only=False)],
        hostname="pod",
        user=65532,
        group=65532,
        read_only=True,
    )
    lines = sandbox.script(Path("/pod")).splitlines()
    inner, outer, read_only = (
        next(number for number, line in enumerate(lines) if text in line)
        for text in ("remount,bind,ro /pod/root/data/inner", "tmpfs /pod/root/data", "remount,ro /pod/root")
    )
    assert outer < inner < read_only < len(lines) - 2
    assert "--no-new-privs" in lines[-2]
    assert "--userspec=65532:65532" in lines[-2]


def test_the_time_of_a_condition_changes_with_its_status_only() -> None:
    before = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "then"},
        {"type": "Ready", "status": "True", "lastTransitionTime": "then"},
        {"type": "Initialized", "status": "False", "lastTransitionTime": "then"},
    ]
    found = _conditions({"status": {"conditions": before}}, {"Ready": (True, ""), "Initialized": (True, "")})
    assert [(one["type"], one["lastTransitionTime"] == "then") for one in found] == [
        ("PodScheduled", True),
        ("Ready", True),
        ("Initialized", False),
    ]


class _Tokens:
    """An API server that issues numbered tokens."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.reachable = True

    async def post(self, *_: object, **__: object) -> dict[str, Any]:
        if not self.reachable:
            raise UnreachableError("connection refused")
        return {"status": {"token": f"token-{next(self.numbers)}"}}


async def test_mounted_tokens_are_renewed_before_they_expire(tmp_path: Path) -> None:
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 1000}}
    volumes = [{"name": "account", "projected": {"sources": [token]}}, {"name": "tmp", "emptyDir": {}}]
    mounts = [{"name": "account", "mountPath": "/account"}]
    pod = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"nodeName": "m", "containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes},
    }
    server, clock = _Tokens(), StillClock()
    runner = PodRunner(
        cast("Any", server),
        pod,
        directory=tmp_path,
        find_image=lambda _: None,
        variables={},
        hosts=tmp_path / "hosts",
        ip="198.18.0.2",
        host_ip="198.18.0.1",
        clock=clock,
    )
    file = tmp_path / "volumes" / "account" / "token"

    await runner._mounts(runner.containers[0])
    assert file.read_text() == "token-1"
    renewing = asyncio.create_task(runner._renew_tokens())
    try:
        await _advance(clock, 799)
        assert file.read_text() == "token-1"
        await _advance(clock, 2)
        assert file.read_text() == "token-2"
        server.reachable = False
        await _advance(clock, 800)
        assert file.read_text() == "token-2"
        server.reachable = True
        await _advance(clock, 10)
        assert file.read_text() == "token-3"
        assert sorted(path.name for path in file.parent.iterdir()) == ["token"]
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])


async def _advance(clock: StillClock, seconds: float) -> None:
    for _ in range(10):
        await asyncio.sleep(0)  # until the task waits for the clock again
    clock.advance(seconds)
    for _ in range(10):
        await asyncio.sleep(0)
