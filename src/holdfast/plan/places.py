"""Where a p-stream may cut a pipeline: the places that give the same results, from the declared one upwards.

Rules over the graph. Columns that nobody reads need not be written. The cut may move behind stateless operators, as
long as nobody else reads what lies between. It may end behind the lift of a window, which makes partial aggregates per
pane and epoch out of rows: the window's own operator then reads partials. "Up" is towards the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.connect.sources.received import ReceivedSource
from holdfast.graph.nodes import Node, Persist, SourceNode, Stateful
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.operators.registry import operator_of
from holdfast.plan.column_needs import columns_read, readers_of, wants_late
from holdfast.pstream.codecs import Lossy
from holdfast.pstream.description import Place

__all__ = ["Cut", "by_rule", "cuts_of", "lossy_at", "places_of"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A p-stream in a pipeline: declared with `persist`, or by a source that clients push to. `entry` is the operator
    whose rows it would get where it was declared."""

    name: str
    entry: str
    push_up: bool
    pushed: bool


def cuts_of(nodes: Mapping[str, Node]) -> list[Cut]:
    """All cuts of a pipeline, in order of declaration."""
    found = []
    for node in nodes.values():
        if isinstance(node, Persist):
            found.append(Cut(node.name, node.inputs[0], node.push_up, False))
        elif isinstance(node, SourceNode) and isinstance(node.source, ReceivedSource):
            found.append(Cut(node.name, node.name, node.source.push_up, True))
    return found


def places_of(nodes: Mapping[str, Node], cut: Cut) -> list[Place]:
    """The declared place first, then upwards."""
    schema = nodes[cut.entry].schema
    places = [Place(cut.entry, tuple(schema))]
    if not cut.push_up:
        return places
    at = nodes[cut.name]
    places.append(Place(cut.entry, columns_read(nodes, at)))
    while True:
        readers = readers_of(nodes, at.name)
        if len(readers) != 1:
            break
        [reader] = readers
        if isinstance(reader, Stateful) and _lifts(nodes, reader) and not cut.pushed:
            places.append(Place(places[-1].after, columns_read(nodes, at), reader.name))
        if not isinstance(reader, Stateless) or not reader.sampled or len(reader.inputs) > 1:
            break
        at = reader
        places.append(Place(at.name, columns_read(nodes, at)))
    return list(dict.fromkeys(places))


def lossy_at(nodes: Mapping[str, Node], cut: Cut, place: Place) -> tuple[Lossy, ...]:
    """Which columns may be rounded at a place: those that were declared, and still are what they were."""
    declared = nodes[cut.name]
    if not isinstance(declared, Persist) or place.window is not None:
        return ()
    kept = [lossy for lossy in declared.lossy if lossy.column in place.columns]
    at = place.after
    while at != cut.entry:
        node = nodes[at]
        kept = [lossy for lossy in kept if not _makes(nodes, node, lossy.column)]
        at = node.inputs[0] if node.inputs[0] != cut.name else cut.entry
    return tuple(kept)


def _makes(nodes: Mapping[str, Node], node: Node, column: str) -> bool:
    """Whether an operator emits a column of that name which is not simply its input's."""
    return isinstance(node, Stateless) and node.changes(column, nodes[node.inputs[0]].schema)


def by_rule(nodes: Mapping[str, Node], places: list[Place]) -> Place:
    """The place to take while nothing is measured: behind the filters and projections that come first."""
    best = places[0]
    for place in places[1:]:
        after = nodes[place.after]
        smaller = place.after == places[0].after or (isinstance(after, Stateless) and after.shrinks)
        if place.window is not None or not smaller:
            break
        best = place
    return best


def _lifts(nodes: Mapping[str, Node], node: Stateful) -> bool:
    """Whether rows for the operator travel as partials."""
    return operator_of(node).lifted is not None and not wants_late(nodes, node)
