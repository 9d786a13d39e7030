"""`unwind demo`, as somebody sees it who runs it: the whole story, in a pipe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.plane.test_local_command import Shell

if TYPE_CHECKING:
    from pathlib import Path

_LONG = 350.0


@pytest.mark.timeout(400)
def test_the_demonstration_tells_the_whole_story(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "state")
    running = shell.start("demo", "--no-input")
    text, _ = running.communicate(timeout=_LONG)
    assert running.returncode == 0, text
    assert "\x1b" not in text  # a pipe gets plain lines

    # What is protected was not deleted, and the words are those that people search for.
    assert "forbidden by ResourcesProtectionDeletion for policy.kruise.io/delete-protection=Always" in text

    # What depends on something went before it.
    gone = [
        text.index(f"ClusterProfile/{name} removed (verified absent)")
        for name in ("monitoring", "shop", "databases", "operator")
    ]
    assert gone == sorted(gone)
    assert text.index("ClusterProfile/shop removed (verified absent)") < text.index(
        "ClusterProfile/ingress removed (verified absent)"
    )
    assert "ClusterProfile/audit is left in place, as its profile says" in text

    # The finalizer held things up, and Cluster API was told to wait.
    unserved = "blocked by finalizer backup.example.dev/last-backup (no controller found)"
    assert unserved in text
    assert "The orders are backed up in 5 s" in text
    assert "hook response to Cluster API: waiting for add-on cleanup" in text
    assert text.index(unserved) < text.index("ClusterProfile/databases removed (verified absent)")

    assert re.search(r"20 of 21 objects removed \(verified absent\) in \d+s, 1 left in place", text)
    assert "left in place: ConfigMap kube-system/audit-policy" in text
    assert "remaining load balancers: 0" in text
    assert "Cluster shops/prod is gone" in text
    assert re.search(r"Cluster API deleted the infrastructure \d+\.\ds after the last add-on", text)
    assert "$ kubectl delete clusters.cluster.x-k8s.io prod -n shops --wait=false" in text
    # What needs a person is told, and not the operator that does its work.
    assert "(must act: the controller of backup.example.dev)" in text
    assert shell.nothing_left()
