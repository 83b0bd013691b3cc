"""Where a p-stream may cut a pipeline: the places that give the same results, from the declared one upwards.

Rules over the graph. Columns that nobody reads need not be written. The cut may move behind stateless operators, as
long as nobody else reads what lies between. It may end behind the lift of a window, which makes partial aggregates per
pane and epoch out of rows: the window's own operator then reads partials. "Up" is towards the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from holdfast.connect.sources.push import PushSource
from holdfast.graph.checks import changes_column
from holdfast.graph.nodes import (
    Explode,
    Filter,
    JoinTable,
    MapBatches,
    Node,
    Persist,
    Select,
    SideOutput,
    SourceNode,
    Stateful,
    Union,
    WithColumns,
)
from holdfast.operators.registry import operator_of
from holdfast.pstream.codecs import Lossy
from holdfast.pstream.description import Place

__all__ = ["Cut", "by_rule", "cuts_of", "lossy_at", "places_of", "readers_of"]

_MOVABLE = (Filter, Select, WithColumns, MapBatches, Explode, JoinTable)
_SMALLER_BY_RULE = (Filter, Select)


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
        elif isinstance(node, SourceNode) and isinstance(node.source, PushSource):
            found.append(Cut(node.name, node.name, node.source.push_up, True))
    return found


def readers_of(nodes: Mapping[str, Node], name: str) -> list[Node]:
    """The operators that read from `name`."""
    return [node for node in nodes.values() if name in node.inputs]


def places_of(nodes: Mapping[str, Node], cut: Cut) -> list[Place]:
    """The declared place first, then upwards."""
    schema = nodes[cut.entry].schema
    places = [Place(cut.entry, tuple(schema))]
    if not cut.push_up:
        return places
    at = nodes[cut.name]
    places.append(Place(cut.entry, _kept(nodes, at)))
    while True:
        readers = readers_of(nodes, at.name)
        if len(readers) != 1:
            break
        [reader] = readers
        if isinstance(reader, Stateful) and _lifts(nodes, reader) and not cut.pushed:
            places.append(Place(places[-1].after, _kept(nodes, at), reader.name))
        if not isinstance(reader, _MOVABLE):
            break
        at = reader
        places.append(Place(at.name, _kept(nodes, at)))
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
    """Whether an operator puts out a column of that name which is not simply its input's."""
    if isinstance(node, Select | WithColumns):
        return changes_column(node.exprs, column, nodes[node.inputs[0]].schema)
    return isinstance(node, MapBatches)


def by_rule(nodes: Mapping[str, Node], places: list[Place]) -> Place:
    """The place to take while nothing is measured: behind the filters and projections that come first."""
    best = places[0]
    for place in places[1:]:
        moved = place.after != places[0].after
        if place.window is not None or (moved and not isinstance(nodes[place.after], _SMALLER_BY_RULE)):
            break
        best = place
    return best


def _lifts(nodes: Mapping[str, Node], node: Stateful) -> bool:
    """Whether rows for the operator travel as partials."""
    return operator_of(node).lifted is not None and not _wants_late(nodes, node)


def _wants_late(nodes: Mapping[str, Node], node: Stateful) -> bool:
    """Whether somebody reads the operator's late rows."""
    return any(isinstance(reader, SideOutput) for reader in readers_of(nodes, node.name))


def _kept(nodes: Mapping[str, Node], node: Node) -> tuple[str, ...]:
    """The columns of an operator's rows that somebody reads, and the event time."""
    wanted = _wanted(nodes, node.name)
    if wanted is None or not readers_of(nodes, node.name):  # what nobody reads here is for others
        return tuple(node.schema)
    if node.time is not None:
        wanted |= {node.time.column}
    return tuple(name for name in node.schema if name in wanted) or tuple(node.schema)[:1]


def _wanted(nodes: Mapping[str, Node], name: str) -> frozenset[str] | None:
    """What the readers of `name` need of its columns; None for all."""
    found: frozenset[str] = frozenset()
    for reader in readers_of(nodes, name):
        needs = _needs(nodes, reader)
        if needs is None:
            return None
        found |= needs
    return found


def _needs(nodes: Mapping[str, Node], node: Node) -> frozenset[str] | None:
    """What an operator needs of its input."""
    if isinstance(node, Stateful):
        read = operator_of(node).reads(nodes[node.inputs[0]].time)
        return None if read is None or _wants_late(nodes, node) else frozenset(read)
    if isinstance(node, Select):
        return _roots(node.exprs)
    if not isinstance(node, Filter | WithColumns | Explode | JoinTable | Union | Persist):
        return None
    behind = _wanted(nodes, node.name) if not isinstance(node, Persist) or node.push_up else None
    if behind is None:
        return None
    own: frozenset[str] | None = frozenset()
    if isinstance(node, Filter):
        own = _roots([node.predicate])
    elif isinstance(node, WithColumns):
        own = _roots(node.exprs)
        if own is not None:
            behind -= {expr.meta.output_name() for expr in node.exprs} - own
    elif isinstance(node, Explode):
        own = frozenset(node.columns)
    elif isinstance(node, JoinTable):
        own = frozenset(node.on)
        behind -= set(node.table.columns) - own
    if own is None:
        return None
    if node.time is not None:
        own |= {node.time.column}
    return behind | own


def _roots(exprs: Iterable[pl.Expr]) -> frozenset[str] | None:
    """The columns that expressions read; None where one of them says "all that match"."""
    found: set[str] = set()
    for expr in exprs:
        if expr.meta.has_multiple_outputs():
            return None
        found.update(expr.meta.root_names())
    return frozenset(found)
