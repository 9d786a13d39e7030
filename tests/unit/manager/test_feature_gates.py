"""Feature gates are on or off, and a wrong one is never passed over."""

from __future__ import annotations

import pytest

from unwind.errors import UnwindError
from unwind.manager.feature_gates import FeatureGate, parse

KNOWN = (FeatureGate("Off", False, "is off"), FeatureGate("On", True, "is on"))


@pytest.mark.parametrize(
    ("text", "off", "on"),
    [
        ("", False, True),
        ("Off=true", True, True),
        (" Off = True , On=false,", True, False),
        ("Off=true,Off=false", False, True),
    ],
)
def test_what_is_not_said_is_as_it_is_by_default(text: str, off: bool, on: bool) -> None:
    assert parse(text, known=KNOWN) == {"Off": off, "On": on}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Of=true", r"unknown feature gate 'Of' \(valid: Off, On\)"),
        ("off=true", "unknown feature gate 'off'"),
        ("Off", "invalid value '' for feature gate Off"),
        ("Off=yes", "use Off=true or Off=false"),
    ],
)
def test_a_wrong_one_is_named_with_what_there_is(text: str, said: str) -> None:
    with pytest.raises(UnwindError, match=said):
        parse(text, known=KNOWN)
