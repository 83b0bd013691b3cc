"""Where a row of the output comes from: its epoch, the input of that epoch and of those before it, and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from holdfast.plurals import counted

__all__ = ["RowOrigin"]


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Why a row was emitted. `notes` say how exact that is, in sentences."""

    pipeline: str
    """The pipeline, or the fragment of it."""
    sink: str
    epoch: int
    """The epoch that put the rows out."""
    rows: pl.DataFrame
    """The rows of the output, of that epoch."""
    slices: pl.DataFrame
    """What the epoch, and those before it that were followed, read: `epoch`, `source`, `slice` (its number in the
    epoch), `rows` (about), and `where`, the place in the source's own words as JSON."""
    inputs: Mapping[str, pl.DataFrame]
    """The input rows behind the result, by source: `epoch`, `operator`, `slice`, `row` (its number in the slice, from
    0), `place` if the source names one, and the columns of the source."""
    between: Mapping[str, pl.DataFrame]
    """The rows of stateful operators on the way, by operator, with their `epoch`."""
    state: Mapping[str, pl.DataFrame]
    """The state of the row's key when the `epoch` began, by operator, as `hf.state` shows it."""
    earlier: Mapping[str, pl.DataFrame]
    """The same before the first epoch that was followed: all that is left of input which is not listed. Empty where
    the key had no state then."""
    first: int
    """The first epoch that was followed."""
    notes: tuple[str, ...]

    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables by their headings, without empty ones."""
        found = {f"rows of {self.sink}, emitted by epoch {self.epoch} of '{self.pipeline}'": self.rows}
        found |= {f"input rows of {name}": rows for name, rows in self.inputs.items()}
        found |= {f"rows that {name} emitted on the way": rows for name, rows in self.between.items()}
        found |= {f"state of {name} when the epoch began": rows for name, rows in self.state.items()}
        found |= {
            f"state of {name} before the first epoch that was followed": rows for name, rows in self.earlier.items()
        }
        found["slices that were read"] = self.slices
        return {heading: rows for heading, rows in found.items() if rows.height}

    def __str__(self) -> str:
        counts = [f"  {heading}: {counted(rows.height, 'row')}" for heading, rows in self.tables().items()]
        return "\n".join([*counts, *(f"  note: {note}" for note in self.notes)])
