"""The contract of stateless operators: everything that the rest of the system asks about one.

An operator is a frozen dataclass in one module, with a function that checks a declaration and creates it. Nobody else
asks which operator it is. Tasks ask for its query, planning asks which columns it reads and where a p-stream may cut
the pipeline, and `explain` asks for words. What has a default here is conservative: an operator that says nothing
about itself is correct, but its input is read whole and less is moved past it.

What is not promised: `apply` sees batches of any size, in any division into tasks and epochs, so it must treat rows
independently of each other and keep nothing between two calls. It also runs on empty frames and on samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import polars as pl

from holdfast.connect.lookups.lookup_table import Lookup
from holdfast.graph.nodes import Node
from holdfast.store import DirectoryStore

__all__ = ["KeyJoin", "LookupUse", "Stateless"]


@dataclass(frozen=True, slots=True)
class KeyJoin:
    """A join with a table that has at most one row per key. It can follow the lift of a window, on fewer rows."""

    table: pl.DataFrame
    on: tuple[str, ...]
    how: Literal["inner", "left"]

    @property
    def added(self) -> frozenset[str]:
        """The columns that only the table has."""
        return frozenset(self.table.columns) - set(self.on)

    def apply(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        return rows.join(self.table.lazy(), on=list(self.on), how=self.how)


@dataclass(frozen=True, slots=True)
class LookupUse:
    """A table that changes while the pipeline runs, as an operator uses it. The plan of an epoch names a version, and
    tasks find that version in `versions`. `lookup` reads the table; tasks do not have it, because it may hold
    passwords. `schema` has the declared columns."""

    schema: pl.Schema
    lookup: Lookup | None
    versions: DirectoryStore | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stateless(Node, ABC):
    """An operator without state: each of its output rows comes from one input row."""

    # Rows

    @abstractmethod
    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        """Its rows, as a query over those of its inputs that are present, at least one.

        A frame can lack columns that nobody reads (`reads`), and can have a hidden column, `hidden_columns.BOUND`,
        whose values must stay with their rows.
        """

    keeps_time: ClassVar[bool] = False
    """Whether its rows certainly have the event times of the rows that they come from."""

    # Planning

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        """The columns of its input that it needs if its readers need the columns `wanted`; None stands for all."""
        return None

    @property
    def condition(self) -> pl.Expr | None:
        """Of an operator that only leaves out rows: which rows it keeps."""
        return None

    def changes(self, column: str, rows: pl.Schema) -> bool:
        """Whether it outputs a column of this name that is not simply that of its input, `rows`."""
        return True

    shrinks: ClassVar[bool] = False
    """Whether rows usually become fewer or smaller here: if nothing was measured, p-streams are cut after it."""

    @property
    def sampled(self) -> bool:
        """Whether sample rows can be sent through it before the pipeline starts, and a p-stream be cut after it."""
        return True

    # Tables that it joins with

    @property
    def key_join(self) -> KeyJoin | None:
        """All that it does, if that is such a join."""
        return None

    @property
    def lookup_use(self) -> LookupUse | None:
        """The table that it joins with, if that changes while the pipeline runs."""
        return None

    def with_versions(self, versions: DirectoryStore) -> Stateless:
        """The operator that finds the versions of its table in a store."""
        raise NotImplementedError(f"{type(self).__name__} has no lookup table")

    def with_table(self, table: pl.DataFrame) -> Stateless:
        """The operator with a version of its table."""
        raise NotImplementedError(f"{type(self).__name__} has no lookup table")

    # Words

    @abstractmethod
    def explain(self) -> list[str]:
        """What it does: a line to follow its name, and more lines if there is more to say."""
