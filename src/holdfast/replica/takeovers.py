"""The takeovers of a host: how long they took, and how long readers saw no output."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.meta import Commit, MetaStore
from holdfast.replica.controller_loop import ControllerLoop
from holdfast.replica.host_events import Emit, FragmentTakenOver, OutputGap
from holdfast.replica.membership import Membership
from holdfast.replica.output_gap import CommitTimes, FirstOutput, Takeover
from holdfast.replica.process_meter import ProcessMeter
from holdfast.replica.schemes import Scheme
from holdfast.threads import Clock

__all__ = ["Takeovers"]


@dataclass(slots=True)
class Takeovers:
    """`loops` are notified of each takeover of their fragments, when output has resumed."""

    member: Membership
    meta: MetaStore
    process: ProcessMeter
    loops: Mapping[str, ControllerLoop]
    emit: Emit
    threads: Clock
    _seats: dict[str, int] = field(default_factory=dict)
    """The seat with which a fragment was taken over last."""
    _takeovers: dict[str, tuple[Scheme, float, Takeover]] = field(default_factory=dict)
    _went_on: dict[str, int] = field(default_factory=dict)
    """The seat under which a fragment has last emitted."""
    _outputs: dict[str, FirstOutput] = field(default_factory=dict)
    _commits: dict[str, CommitTimes] = field(default_factory=dict)

    def processed(self, report: EpochReport) -> None:
        """An epoch was run here, whoever has committed it."""
        self._commits.setdefault(report.fragment, CommitTimes()).add(report.started, report.committed)

    def took_over(self, fragment: str, replayed: int) -> None:
        """The steps of a recovery are those since the seat was there or, where a process was started for it, since that
        began; one that saw the primary before was not. The first start of a fragment is no recovery."""
        place = self.member.serve(fragment)
        scheme, seat = place.scheme, place.keeper.seat
        seconds = self.threads.monotonic() - place.seated_at
        if place.first:
            self.loops[fragment].began(seconds)
        if scheme is None or place.first or seat is None or self._seats.get(fragment) == seat.token:
            return  # also of a run that began again on the seat it has
        self._seats[fragment] = seat.token
        seated_at, silence = place.seated_at, place.silence
        if not scheme.needs_secondary and place.started_for:
            seconds = self.threads.now() - self.process.started
            seated_at, silence = self.threads.monotonic() - seconds, self.member.timing.noticed
        self._takeovers[fragment] = scheme, seconds, Takeover(silence, seated_at, self.threads.now(), replayed)
        self.emit(FragmentTakenOver(fragment, seconds, replayed, scheme.name))
        self._report_gap(fragment)

    def put_out(self, fragment: str, report: EpochReport) -> None:
        """Output resumes under this primary with the first epoch that it commits."""
        place = self.member.serve(fragment)
        seat = place.keeper.seat
        if seat is None or not place.keeper.is_primary or place.first or self._went_on.get(fragment) == seat.token:
            return
        self._went_on[fragment] = seat.token
        before = None
        with contextlib.suppress(SQLAlchemyError, HoldfastError):
            found = self.meta.look_up(fragment, report.epoch - 1)
            before = found.committed_at if isinstance(found, Commit) else None
        self._outputs[fragment] = FirstOutput(self.threads.monotonic(), report.started, report.committed, before)
        self._report_gap(fragment)

    def _report_gap(self, fragment: str) -> None:
        """What a reader has seen of a takeover, when it is over and output has gone on."""
        if fragment not in self._takeovers or fragment not in self._outputs:
            return
        scheme, seconds, taken = self._takeovers.pop(fragment)
        first, loop = self._outputs.pop(fragment), self.loops[fragment]
        if scheme.both_commit:
            seated_at = self.threads.now() - (self.threads.monotonic() - taken.seated_at)
            since = seated_at - taken.silence - self.member.timing.noticed
            gap, noticed = self._commits[fragment].longest(since), 0.0
        else:
            gap, noticed = taken.gap(first, loop.rhythm + 2 * self.member.timing.beat), taken.silence
        loop.took_over(scheme, gap, taken.replayed, self.threads.monotonic(), noticed=noticed, steps=seconds)
        self.emit(OutputGap(fragment, scheme.name, gap, noticed))
