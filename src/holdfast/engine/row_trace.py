"""Rows followed through the stateless operators, from what came in to what went out.

Each row gets its number as a hidden column that the chains keep. A function of the user's that changes the number of
rows is called for the rows of one number at a time. So that it is not called for each of a million rows, large blocks
of rows are numbered first, then smaller ones in those that matter, and single rows in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import polars as pl

from holdfast.connect.base import Source
from holdfast.epoch.plan import EpochPlan
from holdfast.graph.nodes import Node, SideOutput, SourceNode, Stateful
from holdfast.hidden_columns import BOUND
from holdfast.plan.chain import Chain
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSource
from holdfast.task.origin import Origin

__all__ = ["ReadRows", "found_rows", "origins_of", "read_again"]

Wanted = Callable[[pl.DataFrame], pl.DataFrame]
"""Those of the rows at a target that are looked for."""
_SIZES = (1024, 32, 1)
"""Of blocks, one after the other."""


def origins_of(program: Program, target: str) -> list[Node]:
    """Where rows at a target come from: the sources, stateful operators and side outputs before it."""
    node = program.nodes[target]
    if isinstance(node, SourceNode | Stateful | SideOutput):
        return [node]
    found = [origin for upstream in node.inputs for origin in origins_of(program, upstream)]
    return list({origin.name: origin for origin in found}.values())


def found_rows(program: Program, origin: Origin, target: str, wanted: Wanted) -> pl.Series:
    """The numbers of those rows of an origin of which a wanted row at the target is made."""
    numbers = pl.int_range(origin.frame.height, dtype=pl.Int64, eager=True)
    for size in _SIZES:
        if len(numbers) > size or size == 1:
            some = replace(origin, frame=origin.frame[numbers])
            blocks = _reached(program, some, target, wanted, numbers // size) if len(numbers) else numbers
            numbers = numbers.filter((numbers // size).is_in(blocks.implode()))
    return numbers


def _reached(program: Program, origin: Origin, target: str, wanted: Wanted, numbers: pl.Series) -> pl.Series:
    frame = origin.frame.with_columns(numbers.alias(BOUND))
    made = Chain(program.nodes).frames([target], {origin.name: replace(origin, frame=frame).lazy()})
    if target not in made:
        return numbers.head(0)
    return wanted(made[target].collect())[BOUND].drop_nulls().unique().sort()


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Rows of a slice, as the source gives them. `first` is the number of the first one in its slice."""

    slice: int
    first: int
    origin: Origin
    place: str


def read_again(program: Program, declared: Mapping[str, Node], plan: EpochPlan, source: str) -> Iterator[ReadRows]:
    """The rows that an epoch has read of a source, with all their columns, but for those that were bad."""
    node, whole = program.nodes[source], declared[source]
    assert isinstance(node, SourceNode)
    assert isinstance(whole, SourceNode)
    reader = node.source if isinstance(node.source, StreamSource) else whole.source
    assert isinstance(reader, Source)
    for number, piece in enumerate(plan.slices_of(source)):
        first = 0
        for chunk in reader.read(piece):
            frame = chunk.frame.drop(BOUND, strict=False)
            if node.allowed is not None and chunk.marks is None:
                frame, _ = node.allowed.split(frame, plan.now, shift=chunk.shift)
            time = None if node.time is None else node.time.column
            yield ReadRows(number, first, Origin(source, frame, time, chunk.shift), chunk.place)
            first += chunk.rows + (0 if chunk.bad is None else chunk.bad.height)
