"""The report of a drill: what was predicted, what happened, and the verdict. Reports are files of the store, below
`STORE/_events/drills`, and stay when the events of that time are gone."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.plan.drill_command import Victim
from holdfast.plurals import counted
from holdfast.spans import duration
from holdfast.watch.event_kinds import DrillDone
from holdfast.watch.report_files import keep_file, kept_files

__all__ = ["DrillForecast", "DrillReport", "keep_report", "kept_reports"]

_DIRECTORY = "drills"
_MOST_REPORTS = 500


class DrillForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What a drill is predicted to take: seconds until the next commit, epochs and rows that run again, money for
    these. None is what nobody can say yet. `text` says what it rests on."""

    seconds: float | None = None
    epochs: int | None = None
    rows: int | None = None
    cost: float | None = None
    text: str = ""


class DrillReport(msgspec.Struct, frozen=True, kw_only=True):
    """`epoch` was in flight when it was struck at `at`. `seconds` is how long it took until that epoch was committed,
    `rows` what the epochs had read that were in flight. `compared` are the epochs that were run again from the state
    before the blow, `differences` is what of their output or state is not as it was committed; `bound` is the longest
    recovery that the pipeline's guarantee allows."""

    pipeline: str
    fragment: str
    kill: Victim
    what: str
    at: float
    epoch: int
    predicted: DrillForecast
    bound: float | None = None
    seconds: float | None = None
    rows: int = 0
    compared: tuple[int, ...] = ()
    differences: dict[str, str] = {}
    problem: str = ""
    """Why there is no verdict by digests, if there is none."""
    passed: bool = False
    verdict: str = ""
    """Both as `judged` finds them."""

    @property
    def in_time(self) -> bool:
        return self.seconds is not None and (self.bound is None or self.seconds <= self.bound)

    @property
    def intact(self) -> bool:
        """Nothing was lost, and nothing is there twice."""
        return bool(self.compared) and not self.differences and not self.problem

    def judged(self) -> DrillReport:
        """With a verdict by what was measured and compared."""
        verdict = f"{self._about_rows()}; {self._about_time()}"
        return msgspec.structs.replace(self, passed=self.in_time and self.intact, verdict=verdict)

    def _about_rows(self) -> str:
        if self.differences:
            return "the output is wrong: " + ", ".join(f"{n}: {how}" for n, how in self.differences.items())
        if self.problem or not self.compared:
            return f"nothing is proven: {self.problem or 'no epoch could be compared'}"
        first, last = self.compared[0], self.compared[-1]
        which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        return f"nothing lost, nothing twice: the digests of {which} equal those of a run without the failure"

    def _about_time(self) -> str:
        if self.seconds is None:
            return "nothing was committed since"
        text = f"it took {duration(self.seconds)}"
        if self.predicted.seconds is not None:
            text += f", {duration(self.predicted.seconds)} were predicted"
        if self.bound is not None:
            text += f", {duration(self.bound)} are allowed" + ("" if self.in_time else ": TOO LONG")
        return text

    def event(self) -> DrillDone:
        return DrillDone(
            at=self.at, pipeline=self.pipeline, fragment=self.fragment, epoch=self.epoch, what=f"{self.what} killed",
            passed=self.passed, seconds=self.seconds or 0.0, verdict=self.verdict, kill=self.kill,
            predicted=self.predicted.seconds, rows=self.rows,
        )  # fmt: skip

    def text(self) -> str:
        """For a terminal."""
        head = (
            f"{'passed' if self.passed else 'FAILED'}: {self.what} of '{self.fragment}', killed in epoch {self.epoch}"
        )
        return f"{head}; {counted(self.rows, 'row')} in flight ran again\n  {self.verdict}"


def keep_report(store: Path, report: DrillReport) -> Path:
    """Keep it in the store; the oldest reports go when there are very many."""
    name = f"{round(report.at * 1000):015d}-{report.fragment}-{os.getpid()}"
    return keep_file(store, _DIRECTORY, name, report, most=_MOST_REPORTS)


def kept_reports(store: Path, pipeline: str | None = None) -> list[DrillReport]:
    """The newest first; what cannot be read is left out."""
    return [report for report in kept_files(store, _DIRECTORY, DrillReport) if pipeline in (None, report.pipeline)]
