"""Compares resourceVersions, as far as they can be compared (pure)."""

from __future__ import annotations


def is_newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is later than another of the same resource; False if that is unknown.

    Versions are opaque. Those of Kubernetes itself are increasing decimal numbers without leading zeros; an aggregated
    API server may use anything else.
    """
    if not (_is_number(version) and _is_number(than)):
        return False
    return (len(version), version) > (len(than), than)


def may_be_newer(version: str, than: str) -> bool:
    """Whether a resourceVersion differs and is not known to be earlier."""
    return version != than and not is_newer(than, than=version)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdecimal() and not version.startswith("0")
