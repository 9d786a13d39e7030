"""The secret segments in the paths by which Unwind is called."""

from __future__ import annotations

import pytest

from unwind.server import path_segments
from unwind.server.path_segments import Segments, corrected, redacted, segment

KEY, OTHER = b"key", b"other"
PROFILES = "/admit/profiles"


def test_each_path_has_a_segment_of_its_own_and_all_hooks_share_one() -> None:
    hooks = [segment(KEY, f"/hooks.runtime.cluster.x-k8s.io/v1alpha1/{item}") for item in ("discovery", "x/y")]
    assert len({*hooks, segment(KEY, path_segments.HOOKS)}) == 1
    assert len({segment(KEY, PROFILES), segment(KEY, "/admit/clusters"), segment(OTHER, PROFILES), hooks[0]}) == 4
    assert path_segments.new_key() != path_segments.new_key()


@pytest.mark.parametrize(
    "base",
    ["https://10.0.0.1:9443", "https://lb.example/unwind", "https://[::1]:9443/a/b"],
    ids=["plain", "base", "v6"],
)
def test_a_url_gets_the_segment_of_the_key_whatever_it_had(base: str) -> None:
    wanted = {"url": f"{base}/{segment(KEY, PROFILES)}{PROFILES}"}
    for before in ("", f"/{path_segments.PLACEHOLDER}", f"/{segment(OTHER, PROFILES)}"):
        assert corrected({"url": f"{base}{before}{PROFILES}"}, KEY) == wanted
    assert corrected(wanted, KEY) == {}
    hooks = {"url": f"{base}/{segment(KEY, path_segments.HOOKS)}"}
    for before in ("", "/", f"/{path_segments.PLACEHOLDER}", f"/{segment(OTHER, path_segments.HOOKS)}/"):
        assert corrected({"url": f"{base}{before}"}, KEY) == hooks
    assert corrected(hooks, KEY) == {}


def test_a_service_gets_it_as_its_path() -> None:
    service = {"namespace": "unwind-system", "name": "unwind", "port": 443}
    hooks = f"/{segment(KEY, path_segments.HOOKS)}"
    assert corrected({"service": service}, KEY) == {"service": {"path": hooks}}
    assert corrected({"service": service | {"path": hooks}}, KEY) == {}
    webhook = corrected({"service": service | {"path": PROFILES}}, KEY)
    assert webhook == {"service": {"path": f"/{segment(KEY, PROFILES)}{PROFILES}"}}


def test_what_others_say_is_shown_without_segments() -> None:
    url = f"https://10.0.0.1/{segment(KEY, PROFILES)}{PROFILES}"
    assert redacted(f'Post "{url}?timeout=3s": refused') == f'Post "https://10.0.0.1/…{PROFILES}?timeout=3s": refused'


def test_whoever_asked_is_told_when_the_keys_change() -> None:
    held, told = Segments(KEY), []
    held.subscribe(lambda: told.append(held.keys))
    held.use(KEY)
    held.use(OTHER, KEY)
    assert (told, held.key) == ([(OTHER, KEY)], OTHER)
