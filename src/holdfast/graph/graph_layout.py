"""Where the operators of a graph are drawn: in columns from sources to sinks, with few crossings. Pure.

An operator stands in the column behind its last input, a source right before what reads it. Within a column, operators
are put in the order of the mean of their neighbours' places, back and forth a few times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Drawing", "DrawnEdge", "DrawnNode", "lay_out"]

WIDTH, HEIGHT = 176, 84
_GAP_X, _GAP_Y = 40, 24
_MARGIN = 12
_SWEEPS = 6


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """The place of an operator: its left upper corner, and its size."""

    name: str
    x: float
    y: float
    width: float = WIDTH
    height: float = HEIGHT


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    """A curve from one operator to another, as a path of SVG."""

    start: str
    end: str
    path: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph with a place for everything."""

    width: float
    height: float
    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]


def lay_out(inputs: Mapping[str, Sequence[str]]) -> Drawing:
    """Draw a graph that is given by the inputs of each operator; each comes after its inputs."""
    known = {name: [before for before in given if before in inputs] for name, given in inputs.items()}
    columns = _ordered(_columns(known), known)
    tallest = max((len(column) for column in columns), default=0)
    places: dict[str, DrawnNode] = {}
    for number, column in enumerate(columns):
        top = _MARGIN + (tallest - len(column)) * (HEIGHT + _GAP_Y) / 2
        for row, name in enumerate(column):
            places[name] = DrawnNode(name, _MARGIN + number * (WIDTH + _GAP_X), top + row * (HEIGHT + _GAP_Y))
    edges = tuple(
        DrawnEdge(before, name, _curve(places[before], places[name])) for name in inputs for before in known[name]
    )
    return Drawing(
        2 * _MARGIN + len(columns) * (WIDTH + _GAP_X) - (_GAP_X if columns else 0),
        2 * _MARGIN + tallest * (HEIGHT + _GAP_Y) - (_GAP_Y if tallest else 0),
        tuple(places[name] for name in inputs),
        edges,
    )


def _columns(inputs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    depth: dict[str, int] = {}
    for name, given in inputs.items():
        depth[name] = max((depth[before] + 1 for before in given), default=0)
    for name in inputs:
        readers = [depth[after] for after, given in inputs.items() if name in given]
        if not inputs[name] and readers:
            depth[name] = min(readers) - 1
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, column in depth.items():
        columns[column].append(name)
    return columns


def _ordered(columns: list[list[str]], inputs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    outputs: dict[str, list[str]] = {name: [] for name in inputs}
    for name, given in inputs.items():
        for before in given:
            outputs[before].append(name)
    for sweep in range(_SWEEPS):
        neighbours = inputs if sweep % 2 == 0 else outputs
        for column in columns if sweep % 2 == 0 else reversed(columns):
            place = {name: _share(names, at) for names in columns for at, name in enumerate(names)}
            means = {
                name: sum(place[other] for other in neighbours[name]) / len(neighbours[name])
                if neighbours[name]
                else place[name]
                for name in column
            }
            column.sort(key=lambda name: means[name])
    return columns


def _share(names: Sequence[str], at: int) -> float:
    return (at + 0.5) / len(names)


def _curve(start: DrawnNode, end: DrawnNode) -> str:
    x1, y1 = start.x + start.width, start.y + start.height / 2
    x2, y2 = end.x, end.y + end.height / 2
    bend = max(_GAP_X / 2, (x2 - x1) / 2)
    return f"M{x1:g},{y1:g} C{x1 + bend:g},{y1:g} {x2 - bend:g},{y2:g} {x2:g},{y2:g}"
