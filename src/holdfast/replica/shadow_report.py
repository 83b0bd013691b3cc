"""What came of new code that has followed a pipeline as its shadow. It is kept in the store, also while it follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.meta.lease_holder import is_dead
from holdfast.plurals import counted
from holdfast.watch.event_kinds import ShadowTold
from holdfast.watch.report_files import keep_file, kept_files

__all__ = ["ShadowReport", "ShadowState", "keep_shadow", "kept_shadows"]

ShadowState = Literal["follows", "equal", "differs", "failed", "stopped"]
_DIRECTORY = "shadows"
_MOST_REPORTS = 200
_SHOWN_ROWS = 3


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is the new code as `FILE:NAME`, with a checksum of the file, and `old` the one that it is to replace.
    `compared` counts the epochs with equal output by fragment, `sinks` those in which a sink had rows. Where they
    differ: of which fragment and epoch, how by sink, and the first rows that only one of them has emitted."""

    pipeline: str
    code: str
    checksum: str
    old: str
    process: str
    since: float
    at: float
    wanted: int
    state: ShadowState = "follows"
    compared: dict[str, int] = {}
    sinks: dict[str, int] = {}
    fragment: str = ""
    epoch: int | None = None
    differences: dict[str, str] = {}
    only_committed: tuple[str, ...] = ()
    only_shadow: tuple[str, ...] = ()
    problem: str = ""
    """Why it failed or was stopped, or why there are no rows to show."""
    promoted: float | None = None
    """When it has taken over."""

    @property
    def file(self) -> str:
        """The name of the file with the new code."""
        return Path(self.code.rpartition(":")[0]).name

    @property
    def equal_epochs(self) -> int:
        """In how many epochs all fragments were equal."""
        return min(self.compared.values(), default=0)

    @property
    def is_following(self) -> bool:
        """Whether there is no verdict yet, and a process that will give one."""
        return self.state == "follows" and not is_dead(self.process)

    @property
    def verdict(self) -> str:
        """In words."""
        epochs = counted(self.equal_epochs, "epoch")
        match self.state:
            case "follows" if not self.is_following:
                return f"its process has died, after {epochs} with equal output"
            case "follows":
                return f"follows; {self.equal_epochs} of {self.wanted} epochs had equal output"
            case "equal":
                taken = "; it has taken over" if self.promoted is not None else ""
                return f"equal for {epochs}: rows of every sink, and the state after the last one{taken}"
            case "differs":
                how = "; ".join(f"in sink {sink}: {what}" for sink, what in self.differences.items())
                return f"differs at epoch {self.epoch} of '{self.fragment}' {how}"
            case "failed":
                return f"failed after {epochs} with equal output: {self.problem}"
        return f"stopped after {epochs} with equal output: {self.problem}"

    def rows_text(self) -> list[str]:
        """The first rows that differ, a line each; none where there are none to show."""
        told = [f"- {row}   (committed)" for row in self.only_committed[:_SHOWN_ROWS]]
        return told + [f"+ {row}   (shadow)" for row in self.only_shadow[:_SHOWN_ROWS]]

    def event(self, state: str) -> ShadowTold:
        return ShadowTold(
            at=self.at, pipeline=self.pipeline, fragment=self.fragment, epoch=self.epoch, state=state, code=self.code,
            compared=self.equal_epochs, verdict=f"{self.file} {self.verdict}",
        )  # fmt: skip


def keep_shadow(store: Path, report: ShadowReport) -> Path:
    """Keep it, in the place of what was known of the same shadow before."""
    name = f"{round(report.since * 1000):015d}-{report.pipeline}"
    return keep_file(store, _DIRECTORY, name, report, most=_MOST_REPORTS)


def kept_shadows(store: Path) -> Mapping[str, list[ShadowReport]]:
    """By pipeline, the newest first."""
    found: dict[str, list[ShadowReport]] = {}
    for report in kept_files(store, _DIRECTORY, ShadowReport):
        found.setdefault(report.pipeline, []).append(report)
    return found
