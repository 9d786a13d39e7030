"""Paths with a secret segment: nothing is answered without it."""

from __future__ import annotations

from unwind.server import path_segments
from unwind.server.ca_bundles import patch_of
from unwind.server.listener import Listener
from unwind.server.path_segments import Segments, prefix
from unwind.server.routes import Response, Route

CLUSTERS, PROFILES, HOOK = "/admit/clusters", "/admit/profiles", "/hooks.runtime.cluster.x-k8s.io/v1alpha1/x/y"


def route(path: str) -> Route:
    return Route(path=path, handler=lambda *_: Response(b""), name=path)


def test_a_route_is_found_by_the_segments_of_every_accepted_key_and_by_nothing_else() -> None:
    held = Segments(b"new", b"old")
    listener = Listener("https", [route(CLUSTERS), route(HOOK)], segments=held)
    listener.add(route(PROFILES))
    for path in (CLUSTERS, PROFILES, HOOK):
        for key in (b"new", b"old"):
            found = listener.route_at((prefix(key, path) + path).encode())
            assert found is not None
            assert found.path == path
        for given in (
            "",
            "/",
            "//",
            f"/{path_segments.PLACEHOLDER}",
            prefix(b"other", path),
            prefix(b"new", path).upper(),
        ):
            assert listener.route_at((given + path).encode()) is None
        assert listener.route_at(f"{prefix(b'new', path)}/x{path}".encode()) is None
        assert listener.route_at(prefix(b"new", path).encode()) is None
    assert listener.route_at((prefix(b"new", PROFILES) + CLUSTERS).encode()) is None, "each has its own"
    assert listener.route_at(b"") is None
    held.use(b"newest", b"new")
    assert listener.route_at((prefix(b"old", CLUSTERS) + CLUSTERS).encode()) is None
    assert listener.route_at((prefix(b"newest", CLUSTERS) + CLUSTERS).encode()) is not None


def test_before_there_is_a_key_nothing_is_answered() -> None:
    listener = Listener("https", [route(CLUSTERS)], segments=Segments())
    for path in (CLUSTERS, f"/{path_segments.PLACEHOLDER}{CLUSTERS}", f"/{CLUSTERS}", prefix(b"", CLUSTERS) + CLUSTERS):
        assert listener.route_at(path.encode()) is None


def test_webhooks_get_the_segment_and_the_bundle_where_either_is_another() -> None:
    found = {
        "metadata": {"resourceVersion": "7"},
        "webhooks": [
            {"clientConfig": {"url": f"https://10.0.0.1{CLUSTERS}", "caBundle": "Y2E="}},
            {"clientConfig": {"service": {"name": "unwind", "path": PROFILES}, "caBundle": "Y2E="}},
        ],
    }
    kind = "MutatingWebhookConfiguration"
    assert patch_of(found, b"", kind=kind) == []
    same, first, second = patch_of(found, b"ca", kind=kind, key=b"new")
    assert same["op"] == "test"
    url = f"https://10.0.0.1{prefix(b'new', CLUSTERS)}{CLUSTERS}"
    assert (first["path"], first["value"]) == ("/webhooks/0/clientConfig/url", url)
    path = prefix(b"new", PROFILES) + PROFILES
    assert (second["path"], second["value"]) == ("/webhooks/1/clientConfig/service/path", path)
    assert [item["path"].rpartition("/")[2] for item in patch_of(found, b"other", kind=kind, key=b"new")] == [
        "resourceVersion",
        "caBundle",
        "url",
        "caBundle",
        "path",
    ]
