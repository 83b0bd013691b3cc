"""The observer that makes events of what a run tells. Epochs, which may take milliseconds, are summed up by the second;
what they cost here is the append of a report to a list."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.engine.observer import Observer
from holdfast.epoch.epoch_times import mean_times
from holdfast.errors import HoldfastError
from holdfast.meta.lease_holder import this_process
from holdfast.watch.event_kinds import (
    CheckpointDone,
    DeadRowsSeen,
    DecisionMade,
    EpochsDone,
    EpochTrace,
    ErrorSeen,
    KeyShare,
    LateRowsSeen,
    LoggedEvent,
    NoticeGiven,
    PartitionShare,
    RecoveryDone,
    RunEnded,
    RunStarted,
    ScaleChanged,
    StreamWaiting,
    Subject,
    TakeoverDone,
    TaskShare,
)

if TYPE_CHECKING:
    from holdfast.durability.checkpoints import CheckpointReport
    from holdfast.engine.recovery import RecoveryReport
    from holdfast.engine.scaling_rules import ScalingDecision
    from holdfast.engine.summary import RunSummary
    from holdfast.epoch.report import EpochReport
    from holdfast.epoch.task_commit import PartitionWork
    from holdfast.watch.event_log import EventLog

__all__ = ["RunEvents", "summed"]

_MOST_HOT = 3
_FIGURES = re.compile(r"[0-9][0-9.,]*( [kMGT]?B/s)?")
"""A reason with other figures is the same reason."""
_LONG = 2_000
"""A message is cut off behind so many characters."""


class RunEvents(Observer):
    """Writes the events of one run, or of one replica on a host, into a log, which stays the caller's."""

    def __init__(self, log: EventLog, pipeline: str, host: str = "", clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._pipeline = pipeline
        self._host = host
        self._clock = clock
        self._lock = threading.Lock()
        self._reports: list[EpochReport] = []
        self._policies: dict[str, str] = {}
        log.ask(self._epochs)

    def started(self, fragments: Mapping[str, int]) -> None:
        self._log.put(
            RunStarted(
                at=self._clock(), pipeline=self._pipeline, host=self._host, fragments=dict(fragments),
                process=this_process(), version=__version__,
            )
        )  # fmt: skip

    def executor_chosen(self, fragment: str, text: str) -> None:
        executor, _, reason = text.partition(": ")
        self._decided(fragment, "executor", executor, reason)

    def _decided(self, fragment: str, about: Subject, to: str, reason: str) -> None:
        self._log.put(
            DecisionMade(
                at=self._clock(), pipeline=self._pipeline, fragment=fragment, host=self._host, about=about, to=to,
                reason=reason,
            )
        )  # fmt: skip

    def epoch_committed(self, report: EpochReport) -> None:
        with self._lock:
            self._reports.append(report)

    def recovered(self, report: RecoveryReport) -> None:
        self._log.put(
            RecoveryDone(
                at=self._clock(), pipeline=self._pipeline, fragment=report.fragment, host=self._host,
                epoch=report.epoch, phases=_rounded(report.seconds), seconds=round(report.total, 6),
                units=report.units, bytes=report.bytes, replayed=report.replayed,
            )
        )  # fmt: skip

    def took_over(self, fragment: str, replayed: int) -> None:
        if not self._host:  # a host tells it itself, with how long it took
            self._log.put(TakeoverDone(at=self._clock(), pipeline=self._pipeline, fragment=fragment, replayed=replayed))

    def checkpoint_copied(self, report: CheckpointReport) -> None:
        self._log.put(
            CheckpointDone(
                at=self._clock(), pipeline=self._pipeline, fragment=report.fragment, host=self._host,
                epoch=report.epoch, bytes=report.bytes, backup_bytes=report.backup_bytes,
                seconds=round(report.seconds, 6),
            )
        )  # fmt: skip

    def stream_full(self, fragment: str, text: str) -> None:
        self._log.put(
            StreamWaiting(
                at=self._clock(), pipeline=self._pipeline, fragment=fragment, host=self._host, message=text[:_LONG]
            )
        )

    def notice(self, fragment: str, text: str) -> None:
        self._log.put(
            NoticeGiven(
                at=self._clock(), pipeline=self._pipeline, fragment=fragment, host=self._host, message=text[:_LONG]
            )
        )

    def scaling_decided(self, decision: ScalingDecision) -> None:
        if decision.epoch is None and decision.problem is None:
            change = f"{decision.operator} {decision.before} → {decision.after}"
            self._decided(decision.fragment, "scaling", change, decision.reason)
            return
        self._log.put(
            ScaleChanged(
                at=self._clock(), epoch=decision.epoch, operator=decision.operator, before=decision.before,
                after=decision.after, reason=decision.reason, problem=decision.problem or "",
                pipeline=self._pipeline, fragment=decision.fragment, host=self._host,
            )
        )  # fmt: skip

    def ended(self, summary: RunSummary) -> None:
        reasons = {fragment.ended for fragment in summary.fragments.values() if fragment.ended is not None}
        self._log.put(
            RunEnded(
                at=self._clock(), pipeline=self._pipeline, host=self._host, state=summary.state,
                reason=", ".join(sorted(reasons)), epochs=summary.epochs, rows=summary.rows,
                output_rows=summary.output_rows, seconds=round(summary.seconds, 3),
            )
        )  # fmt: skip

    def failed(self, error: BaseException, fragment: str = "") -> None:
        """The run ends with an error."""
        text = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        self._log.put(
            ErrorSeen(
                at=self._clock(), pipeline=self._pipeline, fragment=fragment, host=self._host, message=text[:_LONG]
            )
        )

    def _epochs(self) -> Iterator[LoggedEvent]:
        """What has been committed since the last call, by fragment."""
        with self._lock:
            reports, self._reports = self._reports, []
        for fragment in dict.fromkeys(report.fragment for report in reports):
            own = [report for report in reports if report.fragment == fragment]
            done = summed(own, self._pipeline, self._host)
            yield done
            if done.late_rows:
                yield LateRowsSeen(
                    at=done.at, pipeline=done.pipeline, fragment=fragment, host=done.host, epoch=done.epoch,
                    rows=done.late_rows,
                )  # fmt: skip
            if done.bad_rows:
                yield DeadRowsSeen(
                    at=done.at, pipeline=done.pipeline, fragment=fragment, host=done.host, epoch=done.epoch,
                    rows=done.bad_rows,
                )  # fmt: skip
            policy, reason = own[-1].policy, own[-1].policy_reason or "as the pipeline or the run asks for"
            choice = f"{policy} {_FIGURES.sub('', reason)}"
            if policy is not None and self._policies.get(fragment) != choice:
                self._policies[fragment] = choice
                yield DecisionMade(
                    at=done.at, pipeline=done.pipeline, fragment=fragment, host=done.host, epoch=done.epoch,
                    about="policy", to=policy, reason=reason,
                )  # fmt: skip


def summed(reports: Sequence[EpochReport], pipeline: str, host: str = "") -> EpochsDone:
    """Epochs of one fragment as one event."""
    last = reports[-1]
    latencies = sorted(report.committed - report.started for report in reports)
    times = mean_times(report.times for report in reports if report.times is not None)
    read: dict[str, int] = {}
    for report in reports:
        for source, rows in report.read_by.items():
            read[source] = read.get(source, 0) + rows
    return EpochsDone(
        at=last.committed,
        pipeline=pipeline,
        fragment=last.fragment,
        host=host,
        epoch=last.epoch,
        first=reports[0].epoch,
        count=len(reports),
        rows=sum(report.rows for report in reports),
        entered=sum(report.entered for report in reports),
        output_rows=sum(report.output_rows for report in reports),
        streamed_rows=sum(report.streamed_rows for report in reports),
        streamed_bytes=sum(report.streamed_bytes for report in reports),
        late_rows=sum(report.late_rows for report in reports),
        bad_rows=sum(report.bad_rows for report in reports),
        written_bytes=sum(report.written_bytes for report in reports),
        state_rows=last.state_rows,
        state_bytes=last.state_bytes,
        since=reports[0].started,
        p50=_share(latencies, 0.5),
        p99=_share(latencies, 0.99),
        longest=round(latencies[-1], 6),
        phases={} if times is None else _rounded(times.parts()),
        read=read,
        lag=dict(last.lags),
        greatest={source: greatest for source, greatest in last.greatest.items() if greatest is not None},
        watermark=last.watermark,
        work={
            name: _partitions([report.work[name] for report in reports if name in report.work]) for name in last.work
        },
        reading=_partitions([report.reading for report in reports]),
        hot={name: found for name in last.work if (found := _hot(last.work[name]))},
        slowest=_trace(max(reports, key=lambda report: report.committed - report.started)),
    )


def _trace(report: EpochReport) -> EpochTrace:
    return EpochTrace(
        report.epoch,
        round(report.started, 6),
        round(report.committed - report.started, 6),
        {} if report.times is None else _rounded(report.times.parts()),
        tuple(
            TaskShare(task.stage, task.task, round(task.seconds, 6), round(task.syncing, 6)) for task in report.tasks
        ),
        report.rows,
    )


def _partitions(works: Sequence[Sequence[PartitionWork]]) -> tuple[PartitionShare, ...]:
    """What each partition has done, of the epochs that had as many as the last one."""
    if not works:
        return ()
    alike = [work for work in works if len(work) == len(works[-1])]
    return tuple(
        PartitionShare(round(sum(work[number].cpu for work in alike), 6), sum(work[number].rows for work in alike))
        for number in range(len(works[-1]))
    )


def _hot(parts: Sequence[PartitionWork]) -> tuple[KeyShare, ...]:
    """The keys with most rows in the last epoch."""
    heavy = [key for part in parts if part.load is not None for key in part.load.heavy]
    heavy.sort(key=lambda key: -key.rows)
    return tuple(KeyShare(key.key, key.rows) for key in heavy[:_MOST_HOT])


def _share(ordered: Sequence[float], share: float) -> float:
    return round(ordered[max(0, ceil(share * len(ordered)) - 1)], 6)


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in seconds.items()}
