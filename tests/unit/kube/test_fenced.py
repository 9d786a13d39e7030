"""Every controller that works for shards is fenced: what it began ends with the shard."""

from __future__ import annotations

from pathlib import Path

import unwind

ROOM = Path(unwind.__file__).parent


def test_every_controller_that_asks_for_its_shards_is_fenced() -> None:
    fences = ROOM / "kube" / "fencing.py"
    asking = {path for path in ROOM.rglob("*.py") if "_owner.owns(" in path.read_text()} - {fences}
    assert len(asking) > 10
    bases = ("(Controller[", "(RegistrationController)", "fenced_queue(")
    fenced = {path for path in asking if any(base in path.read_text() for base in bases)}
    assert asking - fenced == set()
    assert "fenced_queue(" in (ROOM / "server" / "registration.py").read_text()
    assert "Fences(shared.owner).around(" in (ROOM / "kube" / "controller.py").read_text()
