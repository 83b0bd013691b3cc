"""What a run has done: by fragment and in total, so far or at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Literal

from holdfast.engine.observer import Observer
from holdfast.plurals import counted
from holdfast.spans import duration

if TYPE_CHECKING:
    from holdfast.engine.recovery import RecoveryReport
    from holdfast.epoch.report import EpochReport

__all__ = ["EndReason", "FragmentSummary", "RunState", "RunSummary", "Tally"]

RunState = Literal["running", "stopping", "ended", "failed"]
EndReason = Literal[
    "its sources ended", "nothing was left to read", "it was stopped", "max_epochs was reached", "the time was up"
]


@dataclass(frozen=True, slots=True)
class FragmentSummary:
    """The summary of a fragment in a run."""

    name: str
    executor: str | None = None
    """What runs its epochs, and why: a crew, or Spark jobs."""
    last_epoch: int = 0
    """The last committed epoch, also if an earlier run has committed it; 0 if there is none."""
    epochs: int = 0
    """How many epochs this run has committed."""
    rows: int = 0
    """Rows that were read, from outside and from p-streams."""
    outside_rows: int = 0
    """Those of them that came from outside."""
    pushed_rows: int = 0
    """Those of them that clients had pushed; each fragment that reads a push source counts its rows."""
    output_rows: int = 0
    """Rows that went to sinks."""
    late_rows: int = 0
    """Rows that arrived after their window was closed."""
    bad_rows: int = 0
    """Rows that could not be read or processed, and went to the dead letters."""
    state_rows: int = 0
    """Rows of state after the last commit of this run."""
    state_bytes: int = 0
    committed: float | None = None
    """When the last commit of this run was, in seconds of the wall clock."""
    recovery: RecoveryReport | None = None
    """How it came back, if an earlier run had left something."""
    ended: EndReason | None = None
    """Why it ended; None while it runs, or if it failed."""

    def after(self, report: EpochReport) -> FragmentSummary:
        """With one more committed epoch."""
        return replace(
            self,
            last_epoch=report.epoch,
            epochs=self.epochs + 1,
            rows=self.rows + report.rows,
            outside_rows=self.outside_rows + report.entered,
            pushed_rows=self.pushed_rows + report.received,
            output_rows=self.output_rows + report.output_rows,
            late_rows=self.late_rows + report.late_rows,
            bad_rows=self.bad_rows + report.bad_rows,
            state_rows=report.state_rows,
            state_bytes=report.state_bytes,
            committed=report.committed,
        )


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run has done: `hf.run` returns it at the end, `Running.status()` while the pipeline runs. All counts are
    since this run began. `str(summary)` is a line for people."""

    pipeline: str
    state: RunState = "running"
    seconds: float = 0.0
    """How long it has run."""
    fragments: Mapping[str, FragmentSummary] = field(default_factory=dict)
    """By name; empty if the run was stopped before it began."""
    problem: str | None = None
    """What went wrong, where it failed."""

    @property
    def epochs(self) -> int:
        """How many epochs were committed, of all fragments."""
        return sum(fragment.epochs for fragment in self.fragments.values())

    @property
    def rows(self) -> int:
        """Rows that came into the pipeline, each counted once; what was read, where only p-streams are read here."""
        every = self.fragments.values()
        outside = sum(fragment.outside_rows for fragment in every)
        pushed = max((fragment.pushed_rows for fragment in every), default=0)
        return outside + pushed or sum(fragment.rows for fragment in every)

    @property
    def output_rows(self) -> int:
        """Rows that went to sinks."""
        return sum(fragment.output_rows for fragment in self.fragments.values())

    @property
    def late_rows(self) -> int:
        """Rows that arrived after their window was closed."""
        return sum(fragment.late_rows for fragment in self.fragments.values())

    @property
    def bad_rows(self) -> int:
        """Rows that could not be read or processed."""
        return sum(fragment.bad_rows for fragment in self.fragments.values())

    @property
    def committed(self) -> float | None:
        """When the last commit of this run was, in seconds of the wall clock."""
        return max(
            (fragment.committed for fragment in self.fragments.values() if fragment.committed is not None), default=None
        )

    def __str__(self) -> str:
        if not self.fragments:
            return f"{self.pipeline} {self.state} before its first epoch"
        unwanted = (("late row", self.late_rows), ("bad row", self.bad_rows))
        counts = [
            counted(self.epochs, "epoch"),
            f"{counted(self.rows, 'row')} in",
            f"{counted(self.output_rows, 'row')} out",
            *(counted(rows, name) for name, rows in unwanted if rows),
        ]
        parts = [
            f"{self.pipeline} {self.state}: {', '.join(counts)} in {duration(self.seconds)}",
            self._last_epochs(),
            *self._reasons(),
        ]
        return "; ".join(parts if self.problem is None else [*parts, self.problem])

    def _repr_html_(self) -> str:
        """A table of the fragments, in a notebook."""
        heads = ("fragment", "last epoch", "epochs", "rows read", "rows out", "late rows", "bad rows")
        lines = [
            (self._short(name), one.last_epoch, one.epochs, one.rows, one.output_rows, one.late_rows, one.bad_rows)
            for name, one in self.fragments.items()
        ]
        body = "".join(f"<tr>{_cells(line)}</tr>" for line in lines)
        head = "".join(f"<th>{name}</th>" for name in heads)
        return f"<p>{escape(str(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _last_epochs(self) -> str:
        every = [(self._short(name), fragment.last_epoch) for name, fragment in self.fragments.items()]
        if len(every) == 1:
            return f"last committed epoch {every[0][1]}"
        return f"last committed epochs {', '.join(f'{name} {epoch}' for name, epoch in every)}"

    def _reasons(self) -> list[str]:
        """Why the fragments ended; once, if all ended for the same reason."""
        by_reason: dict[str, list[str]] = {}
        for name, fragment in self.fragments.items():
            if fragment.ended is not None:
                by_reason.setdefault(fragment.ended, []).append(self._short(name))
        if len(by_reason) < 2:
            return list(by_reason)
        return [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]

    def _short(self, fragment: str) -> str:
        return fragment.removeprefix(f"{self.pipeline}.")


class Tally(Observer):
    """Adds up a run, from what is reported to it."""

    def __init__(self, pipeline: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._lock = threading.RLock()  # a signal may ask for the summary in the middle of a change
        self._summary = RunSummary(pipeline)

    def summary(self) -> RunSummary:
        with self._lock:
            running = self._summary.state in ("running", "stopping")
            return replace(self._summary, seconds=self._clock() - self._began) if running else self._summary

    def started(self, fragments: Mapping[str, int]) -> None:
        with self._lock:
            known = self._summary.fragments
            begun = {
                name: replace(known.get(name, FragmentSummary(name)), last_epoch=epoch)
                for name, epoch in fragments.items()
            }
            self._summary = replace(self._summary, fragments=begun)

    def executor_chosen(self, fragment: str, text: str) -> None:
        self._change(fragment, lambda found: replace(found, executor=text))

    def epoch_committed(self, report: EpochReport) -> None:
        self._change(report.fragment, lambda fragment: fragment.after(report))

    def recovered(self, report: RecoveryReport) -> None:
        self._change(report.fragment, lambda fragment: replace(fragment, recovery=report))

    def stopping(self) -> None:
        with self._lock:
            if self._summary.state == "running":
                self._summary = replace(self._summary, state="stopping")

    def end(self, reasons: Mapping[str, EndReason]) -> RunSummary:
        """The run has ended, each fragment for its reason."""
        for name, reason in reasons.items():
            self._change(name, lambda fragment, reason=reason: replace(fragment, ended=reason))  # type: ignore[misc]
        return self._over("ended", None)

    def fail(self, problem: str) -> RunSummary:
        """The run has failed."""
        return self._over("failed", problem)

    def _over(self, state: RunState, problem: str | None) -> RunSummary:
        with self._lock:
            seconds = self._clock() - self._began
            self._summary = replace(self._summary, state=state, seconds=seconds, problem=problem)
            return self._summary

    def _change(self, name: str, change: Callable[[FragmentSummary], FragmentSummary]) -> None:
        with self._lock:
            fragments = self._summary.fragments
            changed = change(fragments.get(name, FragmentSummary(name)))
            self._summary = replace(self._summary, fragments={**fragments, name: changed})


def _cells(line: Sequence[str | int]) -> str:
    return "".join(f"<td>{escape(cell) if isinstance(cell, str) else format(cell, ',')}</td>" for cell in line)
