"""What in docs/ is written by the program: the reference of every field, word, metric and command, and the pictures."""

from __future__ import annotations

import ast
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

import unwind
from unwind.api import names
from unwind.api.definitions import DEFINITIONS
from unwind.cli import app
from unwind.demo import scenery
from unwind.features import FEATURES
from unwind.picturing.picture import of_plan
from unwind.picturing.svg import svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SOURCE = Path(unwind.__path__[0])
_MADE = "<!-- Written by `make docs` from the code. Whoever changes it here changes nothing. -->"
_METRICS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
}
_WIDTH = 100


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    return {
        "kinds.md": _page("Kinds and their fields", _kinds()),
        "words.md": _page("Annotations, labels, finalizers, conditions and reasons", _words()),
        "metrics.md": _page("Metrics", _metrics()),
        "commands.md": _page("Commands", _commands()),
        "features.md": _page("Feature gates", _features()),
    }


def pictures() -> dict[str, str]:
    """The pictures of the concepts by the name of their file: what the demonstration shows."""
    made = scenery.plan()
    title = f"Cluster {scenery.NAMESPACE}/{scenery.CLUSTER}"
    held = scenery.held(made)
    return {
        "plan.svg": svg(of_plan(title, made, subtitle="what goes if it is deleted, and in which order")),
        "teardown.svg": svg(of_plan(title, made, subtitle="is being deleted", teardown=held)),
    }


def write(directory: Path) -> None:
    """Have all of it in the directory of the documentation."""
    for name, contents in (("reference", pages()), ("pictures", pictures())):
        where = directory / name
        where.mkdir(parents=True, exist_ok=True)
        for path in where.iterdir():
            if path.name not in contents:
                path.unlink()
        for file, text in contents.items():
            (where / file).write_text(text)


def _page(title: str, lines: Iterable[str]) -> str:
    return "\n".join([_MADE, "", f"# {title}", "", *lines]).rstrip() + "\n"


# Kinds


def _kinds() -> Iterator[str]:
    for definition in DEFINITIONS:
        resource = definition.resource
        [version] = definition.custom_resource_definition()["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        yield f"## {resource.kind} (`{resource.api_version}`)"
        yield ""
        yield _cell(schema["description"])
        yield ""
        yield "| field | type | what it says |"
        yield "|---|---|---|"
        for path, one, required in _fields(schema, ""):
            yield f"| `{path}` | {_type(one, required=required)} | {_said(one)} |"
        yield ""


def _fields(schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any], bool]]:
    required = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        if not prefix and name in ("apiVersion", "kind", "metadata"):
            continue
        path = f"{prefix}.{name}" if prefix else name
        yield path, one, name in required
        inner = one.get("items", one)
        within = f"{path}[]" if "items" in one else path
        more = inner.get("additionalProperties")
        if isinstance(more, dict):
            inner, within = more, f"{within}.*"
        yield from _fields(inner, within)


def _type(schema: dict[str, Any], *, required: bool) -> str:
    kind = "integer or string" if schema.get("x-kubernetes-int-or-string") else str(schema.get("type", "anything"))
    if "items" in schema:
        kind = f"list of {schema['items'].get('type', 'anything')}"
    elif isinstance(schema.get("additionalProperties"), dict):
        kind = f"map of {schema['additionalProperties'].get('type', 'anything')}"
    return f"{kind}, required" if required else kind


def _said(schema: dict[str, Any]) -> str:
    said = [_cell(schema.get("description", ""))]
    if choices := schema.get("enum"):
        said.append(f"One of {', '.join(f'`{one}`' for one in choices)}.")
    if "default" in schema:
        said.append(f"Default: `{schema['default']}`.")
    return " ".join(filter(None, said))


# Words


class _Word(NamedTuple):
    name: str
    value: str
    said: str


def _words() -> Iterator[str]:
    module, classes = _read(Path(names.__file__))
    sections = {
        "Annotations": [one for one in module if one.name.endswith("_ANNOTATION")],
        "Labels": [one for one in module if one.name.endswith("_LABEL")],
        "Finalizers": [*classes["Finalizer"], *(one for one in module if one.name.endswith("_FINALIZER"))],
        "Taints": [one for one in module if one.name.endswith("_TAINT")],
        "Field managers": [one for one in module if one.name.endswith("FIELD_MANAGER")],
        "Conditions": classes["ConditionType"],
        "Reasons": classes["Reason"],
        "Events": classes["EventReason"],
    }
    for title, found in sections.items():
        yield f"## {title}"
        yield ""
        yield "| | what it is for |"
        yield "|---|---|"
        for one in sorted(found, key=lambda word: word.value):
            yield f"| `{one.value}` | {_cell(one.said)} |"
        yield ""


def _read(path: Path) -> tuple[list[_Word], dict[str, list[_Word]]]:
    """The words of a module, and those of each class in it, with what stands below each."""
    tree = ast.parse(path.read_text())
    classes = {node.name: list(_assigned(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)}
    return list(_assigned(tree.body)), classes


def _assigned(body: list[ast.stmt]) -> Iterator[_Word]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str(value))):
                said = ""
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    said = str(after.value.value)
                yield _Word(name, value, said)


# Metrics


def _metrics() -> Iterator[str]:
    yield "At `/metrics` of every process (`--metrics-listen`), in the format of Prometheus."
    yield ""
    yield "| metric | type | what it counts | labels |"
    yield "|---|---|---|---|"
    found = {one for path in sorted(_SOURCE.rglob("*.py")) for one in _measured(ast.parse(path.read_text()))}
    for name, kind, said, labels in sorted(found):
        suffix = "_total" if kind == "counter" and not name.endswith("_total") else ""
        yield f"| `{name}{suffix}` | {kind} | {_cell(said)} | {', '.join(f'`{one}`' for one in labels)} |"


def _measured(tree: ast.AST) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(kind), args=[ast.Constant(str(name)), ast.Constant(str(said)), *more]) if (
                kind in _METRICS
            ):
                given = [*more, *(one.value for one in node.keywords if one.arg in ("labels", "labelnames"))]
                labels = [
                    str(one.value)
                    for each in given
                    if isinstance(each, ast.List | ast.Tuple)
                    for one in each.elts
                    if isinstance(one, ast.Constant)
                ]
                yield name, _METRICS[kind], said, tuple(labels)


# Commands


def _commands() -> Iterator[str]:
    yield "`kubectl unwind …` is the same as `unwind …`. What is said below is what `--help` prints."
    yield ""
    yield "| exit code | what it means |"
    yield "|---|---|"
    for code, said in (("0", "done"), ("1", "refused or failed"), ("2", "wrong usage"), ("3", "timed out")):
        yield f"| {code} | {said} |"
    yield ""
    yield from _help(())


def _help(path: tuple[str, ...]) -> Iterator[str]:
    whole = app(path)
    here = whole
    for name in path:
        here = here[name]
    printed = io.StringIO()
    whole.help_print(list(path), console=Console(file=printed, width=_WIDTH, color_system=None))
    yield f"## `{' '.join(('unwind', *path))}`"
    yield ""
    yield "```text"
    yield from (line.rstrip() for line in printed.getvalue().strip().splitlines())
    yield "```"
    yield ""
    for name in sorted(here):
        if not name.startswith("-") and here[name].show:
            yield from _help((*path, name))


# Features


def _features() -> Iterator[str]:
    yield "Switched with `unwind run --feature-gates Name=true,Other=false`."
    yield ""
    yield "| gate | default | what is different when it is on |"
    yield "|---|---|---|"
    for one in FEATURES:
        yield f"| `{one.name}` | {'on' if one.default else 'off'} | {_cell(one.what)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
