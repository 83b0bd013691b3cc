"""The shape of a pipeline as the store keeps it: sources, operators, and the tables of their state.

It was written at the last start. Stores of before say less: what they do not say is None here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.stored_json import JsonForm

__all__ = [
    "ColumnTypes",
    "OperatorShape",
    "PipelineShape",
    "SourceShape",
    "StateMeaning",
    "TableShape",
    "UndoShape",
]

ColumnTypes = Mapping[str, str]
"""The types of columns, as texts."""


class TableShape(msgspec.Struct, frozen=True):
    """A table of an operator's state, by key or else by pane; `filled` are columns that are never null."""

    keyed: bool
    columns: ColumnTypes
    filled: tuple[str, ...]


class StateMeaning(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"time_to_live": "time-to-live"}
):
    """What of an operator's declaration decides what its state means, besides its keys. `state` has the types of the
    state columns, or of those of each of several tables. With `defaults`, columns may be added and made wider."""

    state: ColumnTypes | tuple[ColumnTypes, ...]
    window: str | None = None
    time_to_live: bool | None = None
    timers: bool | None = None
    defaults: Mapping[str, Any] | None = None


class OperatorShape(StateMeaning, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A stateful operator; `partitions` is how many it was declared to have."""

    kind: str
    keys: ColumnTypes
    tables: Mapping[str, TableShape] | None = None
    partitions: int | None = None


class SourceShape(msgspec.Struct, frozen=True):
    """A source: the column of its event time, and the unit of that."""

    time: list[str] | None


class UndoShape(msgspec.Struct, frozen=True):
    """What the pipeline looked like before a change, with the new names of its sources and operators by the old ones.
    It may be undone until an epoch after `epoch` is committed."""

    epoch: int
    shape: PipelineShape
    sources: Mapping[str, str]
    operators: Mapping[str, str]


class PipelineShape(msgspec.Struct, frozen=True, omit_defaults=True):
    sources: Mapping[str, SourceShape]
    operators: Mapping[str, OperatorShape]
    undo: UndoShape | None = None

    def encode(self) -> str:
        return _FORM.encode(self)

    @staticmethod
    def decode(text: str) -> PipelineShape:
        return _FORM.decode(text)


_FORM = JsonForm(PipelineShape, "the shape of a pipeline")
