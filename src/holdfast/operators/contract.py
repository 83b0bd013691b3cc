"""The contract of stateful operators: all that the rest of the system asks about one.

An operator is one class, in one module or package, made for the node that a user declared; `registry.py` lists them
all. Nobody else asks which operator it has before it. Planning asks what must travel to it and what its state looks
like, tasks ask for a step, the merge process for its tables, recovery for what its footprints and its past are worth,
and `explain` for words.

What is not promised: a new operator object is made wherever one is needed, so it keeps nothing between two calls. A
step may run twice for the same epoch, on two machines at the same time, or run and never be committed. Merges run at
any time, in another process, on any consecutive pieces of a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import Stateful, WindowAggregate
from holdfast.graph.windows import Window
from holdfast.operators.state_merge import MergedTable, merge_pieces
from holdfast.operators.step import Grain, StepContext, StepInput, StepResult
from holdfast.state.levels import Merge
from holdfast.state.manifest import Interval, Manifest, Piece, read_piece
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.tables import Writer
from holdfast.store import DirectoryStore

__all__ = ["FootprintRule", "Operator", "StateTable"]

NodeT = TypeVar("NodeT", bound=Stateful)


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table of an operator: by key, or else by pane. `filled` are the hidden columns that are never null."""

    name: str
    keyed: bool
    schema: pl.Schema
    filled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FootprintRule:
    """How the windows of an operator are known in its log of footprints, and become its state again.

    `names` are the columns that name a window, `pane` that of them which says when it closes. `grouped` footprints
    consist of several records. `resting` windows have closed and still keep something. `load(inputs, rows, interval,
    writer)` makes state of the last footprints of all windows in an interval.
    """

    names: tuple[str, ...]
    pane: str | None
    grouped: bool
    resting: bool
    load: Callable[[Sequence[pl.Schema], pl.DataFrame, Interval, Writer], Manifest]


class Operator(ABC, Generic[NodeT]):
    """A stateful operator. `inputs` of a method are the columns of the rows that come to its ports."""

    declared_as: ClassVar[type[Stateful]]
    """The node that it runs; `window` is the kind of window, if the node has one."""
    window: ClassVar[type[Window] | None] = None

    def __init__(self, node: NodeT) -> None:
        self.node = node

    # What it makes

    bounded: ClassVar[bool] = False
    """Whether its results have the bounds of a window, `window_start` and `window_end`."""

    @property
    def pane(self) -> int | None:
        """How long the panes are that its state is in, in the unit of the event time; None where it is in none."""
        return None

    # What travels to it

    by_time: ClassVar[bool] = True
    """Whether event time decides what it does with a row; if not, the order of arrival does."""

    @property
    def by_clock(self) -> bool:
        """Whether its state follows the clock of the plans instead of event time: then what is said here of watermarks
        is said of that clock."""
        return False

    numbered: ClassVar[bool] = True
    """Whether it wants the place of each row in the order of arrival (ROW_SEQ), and not only rows in that order."""

    def reads(self, time: EventTime | None) -> list[str] | None:
        """The columns of its input that it reads, where the others need not travel; None for all. `time` is the
        event time of the input."""
        return None

    @property
    def lifted(self) -> WindowAggregate | None:
        """The window aggregate for which rows are reduced to partials per pane before they travel, if they are."""
        return None

    def grain(self, behind: Grain | None) -> Grain | None:
        """How closely it wants the watermark before each row that comes to it, where those behind it want that of its
        results as closely as `behind` says."""
        return Grain(1) if self.by_time else None

    # State

    @abstractmethod
    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        """The tables of its state, with all their columns, in the order in which people see them."""

    @abstractmethod
    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        """What of the declaration decides what its state means, besides the keys.

        It is stored, and a later start with another meaning is refused.
        """

    # An epoch

    @abstractmethod
    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        """Apply what arrived in an epoch to the state: pure, but for the p-units it writes."""

    def due(self, manifest: Manifest, clock: int | None) -> int | None:
        """Of an operator by the clock: when it has something to do though no row comes, as far as its state after an
        epoch that was planned at `clock` tells. None if it has not."""
        return None

    # Merging

    @abstractmethod
    def merged_table(self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore) -> MergedTable:
        """One of its tables, for a merge of pieces with the columns `stored`."""

    def merge(self, table: str, merge: Merge, watermark: int | None, writer: Writer) -> list[Piece]:
        """Write the pieces that take the place of others."""
        stored = read_piece(writer.store, merge.pieces[-1]).schema
        return merge_pieces(self.merged_table(table, stored, watermark, writer.store), merge, writer)

    # Recovery

    @property
    def footprints(self) -> FootprintRule | None:
        """How its windows leave footprints; None if they do not."""
        return None

    no_footprints: ClassVar[str] = "its state is not made of windows"
    """Why they do not."""

    forgets: ClassVar[bool] = False
    """Whether a replay that begins early enough comes from empty state to the state it had."""

    def wrong_until(self, wrong: int, watermark: int) -> int | None:
        """If rows up to the time `wrong` were wrong or missing: up to when its results may be wrong. None if its own
        state may still be wrong when its watermark is `watermark`."""
        return None

    # For people

    @abstractmethod
    def explain(self) -> list[str]:
        """What it does, in words: a line that stands behind its name, and more where there is more to say."""
