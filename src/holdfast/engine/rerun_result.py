"""What came of running an epoch again: rows, state, and what of it equals what was committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from holdfast.plurals import counted

__all__ = ["Rerun"]


@dataclass(frozen=True, slots=True)
class Rerun:
    """An epoch that was run again. It began with the state after the epoch `after`; those between were run first."""

    pipeline: str
    """The pipeline, or the fragment of it."""
    epoch: int
    after: int
    output: Mapping[str, pl.DataFrame]
    """The rows for each sink, and for each p-stream that is written."""
    put_out: Mapping[str, pl.DataFrame]
    """The rows that each stateful operator has emitted."""
    before: Mapping[str, pl.DataFrame]
    """The state of each operator before the epoch, as `hf.state` shows it."""
    state: Mapping[str, pl.DataFrame]
    """The same after the epoch."""
    read: Mapping[str, int]
    """How many rows were read of each source."""
    bad: int
    """How many of them were bad."""
    late: Mapping[str, int]
    """How many rows came too late, by operator."""
    found: Mapping[str, str | None]
    """All that was compared with what was committed, and how it differs; None where it is equal. Empty where the epoch
    was not committed, or was left out by a recovery with a gap."""

    @property
    def equal(self) -> bool | None:
        """Whether all that could be compared is equal; None if there was nothing to compare with."""
        return all(what is None for what in self.found.values()) if self.found else None

    @property
    def differences(self) -> dict[str, str]:
        """What differs, and how."""
        return {what: how for what, how in self.found.items() if how is not None}

    def verdict(self) -> str:
        """A sentence about what was compared."""
        if self.equal is None:
            return "there is nothing to compare with: the epoch was not committed, or was left out by a recovery"
        if self.equal:
            return f"equal to what was committed: {', '.join(self.found)}"
        return "different from what was committed: " + "; ".join(
            f"{what}: {how}" for what, how in self.differences.items()
        )

    def __str__(self) -> str:
        first = f"epoch {self.epoch} of '{self.pipeline}', run again from the state after epoch {self.after}"
        read = ", ".join(f"{counted(rows, 'row')} of {source}" for source, rows in self.read.items()) or "nothing"
        lines = [first, f"  read: {read}" + (f"; {counted(self.bad, 'bad row')}" if self.bad else "")]
        lines += [f"  late for {name}: {counted(rows, 'row')}" for name, rows in self.late.items()]
        lines += [f"  to {name}: {counted(rows.height, 'row')}" for name, rows in self.output.items()]
        lines += [
            f"  state of {name}: {counted(self.before[name].height, 'row')} before, {rows.height:,} after"
            for name, rows in self.state.items()
        ]
        return "\n".join([*lines, f"  {self.verdict()}"])
