"""Pictures to draw: plans as people have them, and any that hypothesis can think of."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import strategies as st

from unwind.render.picture import Box, Column, Picture

P = "ClusterProfile/"
BLOCKED = (
    "Service ingress/nginx has the finalizer service.kubernetes.io/load-balancer-cleanup (must act: the cloud's"
    " controller)"
)


def picture(*waves: list[Box], edges: tuple[tuple[str, str], ...] = (), notes: tuple[str, ...] = ()) -> Picture:
    columns = tuple(Column(title=f"wave {number}", boxes=tuple(boxes)) for number, boxes in enumerate(waves, 1))
    return Picture(title="Cluster default/prod-7", columns=columns, edges=edges, notes=notes)


def box(name: str, effort: str = "Enforce", objects: int = 4, **more: object) -> Box:
    return Box(name=name, effort=effort, objects=objects, **more)  # type: ignore[arg-type]


def planned() -> Picture:
    """Three waves, six steps."""
    return picture(
        [box(f"{P}monitoring", objects=42), box(f"{P}shop", objects=12), box(f"{P}defaults", "Leave", 3)],
        [box(f"{P}ingress", objects=18, details=("1 load balancer",)), box(f"{P}postgres", "Try", 27)],
        [box(f"{P}cert-manager", objects=51)],
        edges=(
            (f"{P}monitoring", f"{P}ingress"),
            (f"{P}shop", f"{P}ingress"),
            (f"{P}shop", f"{P}postgres"),
            (f"{P}ingress", f"{P}cert-manager"),
            (f"{P}postgres", f"{P}cert-manager"),
            (f"{P}monitoring", f"{P}cert-manager"),
        ),
        notes=(f"{P}defaults is left in place, but this plan removes what it depends on: {P}cert-manager",),
    )


def under_way() -> Picture:
    """The same, being carried out, with something in its way."""
    return picture(
        [
            box(f"{P}monitoring", objects=42, removed=42, state="Removed"),
            box(f"{P}defaults", "Leave", 3, state="Left"),
        ],
        [
            box(f"{P}ingress", objects=18, removed=11, state="Removing", blocked=BLOCKED),
            box(f"{P}postgres", "Try", 27, removed=20, state="Removing"),
        ],
        [box(f"{P}cert-manager", objects=51, state="Waiting")],
        edges=((f"{P}monitoring", f"{P}ingress"), (f"{P}ingress", f"{P}cert-manager")),
    )


def wide(count: int = 50) -> Picture:
    """Many in the first wave, on a few below."""
    chance = random.Random(3)
    first = [box(f"{P}team-{number:02}", objects=number) for number in range(count)]
    second = [box(f"{P}base-{number}") for number in range(6)]
    third = [box(f"{P}core"), box(f"{P}crds", "Try")]
    edges = [(item.name, chance.choice(second).name) for item in first]
    edges += [(item.name, chance.choice(third).name) for item in (*first[::3], *second)]
    return picture(first, second, third, edges=tuple(edges))


def huge(count: int = 2000, waves: int = 8) -> Picture:
    """As many as there may be."""
    chance = random.Random(1)
    columns: list[list[Box]] = [[] for _ in range(waves)]
    for number in range(count):
        effort, state = chance.choice(("Enforce", "Try", "Leave")), chance.choice(("Removing", "Removed", "Waiting"))
        stuck = "stuck" if chance.random() < 0.02 else ""
        columns[number % waves].append(box(f"{P}p-{number}", effort, state=state, removed=1, blocked=stuck))
    edges = tuple(
        (chance.choice(columns[wave]).name, chance.choice(columns[chance.randint(wave + 1, waves - 1)]).name)
        for wave in range(waves - 1)
        for _ in range(count // waves * 3)
    )
    return picture(*columns, edges=edges)


def chain(count: int) -> Picture:
    """One after the other."""
    names = [f"{P}layer-{number}" for number in range(count)]
    return picture(*([box(name)] for name in names), edges=tuple(pairwise(names)))


@st.composite
def any_picture(draw: st.DrawFn) -> Picture:
    """Whatever there can be: circles, arrows backwards, words that are not known, names that are markup."""
    waves = draw(st.lists(st.integers(1, 14), min_size=0, max_size=4))
    names = [f"{draw(st.sampled_from((P, '', '<a&b>/')))}s-{number}" for number in range(sum(waves))]
    left = iter(names)
    columns = [[draw(_boxes(next(left))) for _ in range(count)] for count in waves]
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names)) if names else st.nothing()
    edges = draw(st.lists(pairs, max_size=20)) if names else []
    notes = draw(st.lists(st.text(max_size=200), max_size=2))
    return picture(*columns, edges=tuple(edges), notes=tuple(notes))


def _boxes(name: str) -> st.SearchStrategy[Box]:
    return st.builds(
        Box,
        name=st.just(name),
        effort=st.sampled_from(("Enforce", "Try", "Leave", "enforce", "")),
        objects=st.integers(0, 100_000),
        removed=st.integers(0, 100),
        state=st.sampled_from(("", "Waiting", "Removing", "Removed", "Left", "GivenUp", "Nonsense")),
        blocked=st.sampled_from(("", "stuck", BLOCKED, "x" * 300, "a\x00b <c> & d")),
        details=st.lists(st.text(max_size=60), max_size=6).map(tuple),
    )
