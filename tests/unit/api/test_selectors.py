"""Label selectors in the syntax of kubectl."""

from __future__ import annotations

import msgspec
import pytest

from unwind.api import selectors
from unwind.api.meta import LabelSelector


def wire(text: str) -> dict[str, object]:
    """The selector as it is sent to the API server."""
    found: dict[str, object] = msgspec.json.decode(msgspec.json.encode(selectors.parse(text)))
    return found


def expression(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"matchLabels": {"a": "b"}}),
        ("a==b,c = d", {"matchLabels": {"a": "b", "c": "d"}}),
        ("a=", {"matchLabels": {"a": ""}}),
        ("a!=b", {"matchExpressions": [expression("a", "NotIn", "b")]}),
        ("a", {"matchExpressions": [expression("a", "Exists")]}),
        ("!a", {"matchExpressions": [expression("a", "DoesNotExist")]}),
        ("! a", {"matchExpressions": [expression("a", "DoesNotExist")]}),
        ("a in (b)", {"matchExpressions": [expression("a", "In", "b")]}),
        ("a  in(b, c ,b)", {"matchExpressions": [expression("a", "In", "b", "c")]}),
        ("a notin (b,c)", {"matchExpressions": [expression("a", "NotIn", "b", "c")]}),
        ("a in (,b)", {"matchExpressions": [expression("a", "In", "", "b")]}),
        (
            "kubernetes.io/metadata.name in (default)",
            {"matchExpressions": [expression("kubernetes.io/metadata.name", "In", "default")]},
        ),
    ],
)
def test_each_operator_of_kubectl_becomes_its_requirement(text: str, expected: dict[str, object]) -> None:
    assert wire(text) == expected


def test_requirements_are_combined() -> None:
    assert wire("env in (prod,staging),!legacy,a!=b,key,team=a") == {
        "matchLabels": {"team": "a"},
        "matchExpressions": [
            expression("env", "In", "prod", "staging"),
            expression("legacy", "DoesNotExist"),
            expression("a", "NotIn", "b"),
            expression("key", "Exists"),
        ],
    }


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_selector_selects_everything(text: str) -> None:
    assert selectors.parse(text) == LabelSelector()


def test_a_parsed_selector_selects_as_kubectl_does() -> None:
    selector = selectors.parse("env in (prod,staging),!legacy,tier!=test")
    assert selector.satisfied_by({"env": "prod"})
    assert selector.satisfied_by({"env": "staging", "tier": "web"})
    assert not selector.satisfied_by({"env": "prod", "legacy": ""})
    assert not selector.satisfied_by({"env": "prod", "tier": "test"})
    assert not selector.satisfied_by({"tier": "web"})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a=b,", "expected a label key, found the end"),
        (",a=b", "expected a label key, found ','"),
        ("a=b,,c=d", "expected a label key, found ','"),
        ("!", "expected a label key, found the end"),
        ("=b", "expected a label key, found '='"),
        ("a in b", "expected '(', found 'b'"),
        ("a in (b", "expected ')', found the end"),
        ("a in (b c)", "expected ')', found 'c'"),
        ("a in ()", "operator 'in' for label 'a' needs at least one value"),
        ("a b", "expected one of '=', '==', '!=', 'in', 'notin', found 'b'"),
        ("a=b c", "expected ',', found 'c'"),
        ("!a=b", "expected ',', found '='"),
        ("a=b=c", "expected ',', found '='"),
        ("a>1", "operator '>' for label 'a' is not supported by label selectors"),
        ("a=b,a=c", "label 'a' cannot be both 'b' and 'c'"),
        ("-a=b", "invalid label key '-a'"),
        ("/a=b", "invalid label key '/a'"),
        ("A.io/a=b", "invalid label key 'A.io/a'"),
        ("a.io/b/c=d", "invalid label key 'a.io/b/c'"),
        (f"{'a' * 64}=b", f"invalid label key '{'a' * 64}'"),
        ("a=b/c", "invalid value 'b/c' for label 'a'"),
        (f"a={'b' * 64}", f"invalid value '{'b' * 64}' for label 'a'"),
    ],
)
def test_an_invalid_selector_is_refused_with_its_cause(text: str, why: str) -> None:
    with pytest.raises(selectors.InvalidSelectorError) as refused:
        selectors.parse(text)
    assert str(refused.value) == why
