"""The observer of a run: receives an event for everything that happens, while it happens. A metrics exporter is one,
the live view of `holdfast run` is another.

An observer only watches. The threads that do the work call it, one event at a time, so it should return quickly. An
exception in an observer ends the run: committed epochs stay committed, `hf.run` raises the same exception, and the next
start resumes after the last commit. An event is delivered at most once, and not at all if the process dies between the
event and the call. Anything that must not be missed should be read from the store or from a sink.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.durability.checkpoints import CheckpointReport
    from holdfast.engine.recovery import RecoveryReport
    from holdfast.engine.scaling_rules import ScalingDecision
    from holdfast.engine.summary import RunSummary
    from holdfast.epoch.report import EpochReport

__all__ = ["Observer", "Observers"]

_log = logging.getLogger(__name__)


class Observer:
    """Watches a run. Override the events you need; the others are ignored.

        class Printed(hf.Observer):
            def epoch_committed(self, report: hf.EpochReport) -> None:
                print(report.epoch, report.rows)

        hf.run(pipeline, observer=Printed())

    A fragment is a part of the pipeline between p-streams; a pipeline that no p-stream cuts is one fragment with the
    pipeline's name.
    """

    def started(self, fragments: Mapping[str, int]) -> None:
        """The Spark session is open and the run begins. `fragments` are those that run here, with the last epoch that
        each has committed before; 0 for a new one."""

    def executor_chosen(self, fragment: str, text: str) -> None:
        """The executor of a fragment, and why: a crew, or Spark jobs. Reported again if
        it changes."""

    def listening(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
        """Push sources accept rows now; the addresses by source and protocol, as in `{"clicks": {"http":
        "127.0.0.1:8080"}}`."""

    def input_taken(self, fragment: str, outside_rows: int, stream_rows: int) -> None:
        """An epoch begins on a host that is one of several: it takes so many rows from outside and from p-streams."""

    def epoch_processed(self, report: EpochReport) -> None:
        """An epoch was run on this host, which is one of several, whichever host committed it."""

    def epoch_committed(self, report: EpochReport) -> None:
        """An epoch was committed here: its output is visible, or will be. Epochs that are run again during a recovery
        were committed before, and are not reported again."""

    def recovered(self, report: RecoveryReport) -> None:
        """A fragment has recovered to where it ended or was killed."""

    def took_over(self, fragment: str, replayed: int) -> None:
        """This host outputs the results of the fragment from now on; it has replayed `replayed` epochs for that."""

    def checkpoint_copied(self, report: CheckpointReport) -> None:
        """A checkpoint was copied to the stable tier and to the backups."""

    def stream_full(self, fragment: str, text: str) -> None:
        """A fragment waits, because a p-stream that it writes to is full: `text` names the p-stream and the reader."""

    def notice(self, fragment: str, text: str) -> None:
        """A source reports something unusual, e.g. that its directory is missing. By default it is logged as a
        warning."""
        _log.warning(text)

    def scaling_decided(self, decision: ScalingDecision) -> None:
        """The autoscaler made a decision about an operator; reported again when it was carried out or failed."""

    def stopping(self) -> None:
        """The run was asked to stop: the epochs in flight are committed first."""

    def ended(self, summary: RunSummary) -> None:
        """The run has ended without an error; `summary` describes it."""


class Observers(Observer):
    """Several observers as one: each event goes to all of them, in their order, and the next event waits for it. If one
    raises, those after it do not receive the event. A notice is logged only if none of them handles notices."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._takes_notices = [observer for observer in observers if type(observer).notice is not Observer.notice]
        self._lock = threading.RLock()

    def _tell(self, event: Callable[[Observer], None]) -> None:
        with self._lock:
            for observer in self._observers:
                event(observer)

    def started(self, fragments: Mapping[str, int]) -> None:
        self._tell(lambda observer: observer.started(fragments))

    def executor_chosen(self, fragment: str, text: str) -> None:
        self._tell(lambda observer: observer.executor_chosen(fragment, text))

    def listening(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
        self._tell(lambda observer: observer.listening(addresses))

    def input_taken(self, fragment: str, outside_rows: int, stream_rows: int) -> None:
        self._tell(lambda observer: observer.input_taken(fragment, outside_rows, stream_rows))

    def epoch_processed(self, report: EpochReport) -> None:
        self._tell(lambda observer: observer.epoch_processed(report))

    def epoch_committed(self, report: EpochReport) -> None:
        self._tell(lambda observer: observer.epoch_committed(report))

    def recovered(self, report: RecoveryReport) -> None:
        self._tell(lambda observer: observer.recovered(report))

    def took_over(self, fragment: str, replayed: int) -> None:
        self._tell(lambda observer: observer.took_over(fragment, replayed))

    def checkpoint_copied(self, report: CheckpointReport) -> None:
        self._tell(lambda observer: observer.checkpoint_copied(report))

    def stream_full(self, fragment: str, text: str) -> None:
        self._tell(lambda observer: observer.stream_full(fragment, text))

    def notice(self, fragment: str, text: str) -> None:
        with self._lock:
            for observer in self._takes_notices:
                observer.notice(fragment, text)
        if not self._takes_notices:
            super().notice(fragment, text)

    def scaling_decided(self, decision: ScalingDecision) -> None:
        self._tell(lambda observer: observer.scaling_decided(decision))

    def stopping(self) -> None:
        self._tell(lambda observer: observer.stopping())

    def ended(self, summary: RunSummary) -> None:
        self._tell(lambda observer: observer.ended(summary))
