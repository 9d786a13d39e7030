"""A bundle goes wherever an object says who is called, and nowhere else."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from unwind.server.ca_bundles import patch_of

NEW = base64.b64encode(b"new").decode()


def found(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "one", "resourceVersion": "7"}, **fields}


@pytest.mark.parametrize(
    ("kind", "fields", "paths"),
    [
        (
            "ValidatingWebhookConfiguration",
            {
                "webhooks": [
                    {"clientConfig": {"caBundle": NEW}},
                    {"clientConfig": {"url": "https://x", "caBundle": "b2xk"}},
                ]
            },
            ["/webhooks/1/clientConfig/caBundle"],
        ),
        ("MutatingWebhookConfiguration", {"webhooks": [{"clientConfig": {}}]}, ["/webhooks/0/clientConfig/caBundle"]),
        ("ValidatingWebhookConfiguration", {}, []),
        ("ExtensionConfig", {"spec": {"clientConfig": {"url": "https://x"}}}, ["/spec/clientConfig/caBundle"]),
        ("CustomResourceDefinition", {"spec": {"conversion": {"strategy": "None"}}}, []),
        (
            "CustomResourceDefinition",
            {"spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": {}}}}}},
            ["/spec/conversion/webhook/clientConfig/caBundle"],
        ),
        ("APIService", {"spec": {"service": {"name": "unwind"}}}, ["/spec/caBundle"]),
        ("APIService", {"spec": {}}, []),
    ],
)
def test_only_what_is_not_current_is_written(kind: str, fields: dict[str, Any], paths: list[str]) -> None:
    patch = patch_of(found(**fields), b"new", kind=kind)
    assert [change["path"] for change in patch if change["op"] == "add"] == paths
    assert all(change["value"] == NEW for change in patch if change["op"] == "add")
    if paths:
        assert patch[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    else:
        assert patch == []
