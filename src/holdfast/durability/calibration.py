"""How long a recovery from footprints would take here, measured while the pipeline runs.

Epochs show the time to process a row, tasks that of a footprint. The time to gather footprints is measured now and
then, in parallel with the epochs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from holdfast.durability.footprint_recovery import gather_state
from holdfast.epoch.record import EpochRecord
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.state.goals import FootprintCosts, FootprintRules, LogPace
from holdfast.store import DirectoryStore, Private, remove_tree

__all__ = ["FootprintCalibration", "smoothed"]

_WORTH_GATHERING = 2_000
_GATHER_EVERY = 120.0
_LOAD, _CHECK = 2e-6, 1e-6
"""Seconds per record that are assumed until they are measured."""
_log = logging.getLogger(__name__)


def smoothed(old: float, new: float) -> float:
    """A figure that follows what is measured; the first measurement is taken as it is."""
    return 0.7 * old + 0.3 * new if old else new


class FootprintCalibration:
    """Follows the epochs of one fragment. `costs` is what things take, `pace` how the fragment moves."""

    def __init__(self, program: Program, meta: MetaStore, root: Path, clock: Callable[[], float]) -> None:
        self._program = program
        self._meta = meta
        self._root = root
        self._clock = clock
        self.costs = FootprintCosts(_LOAD, 0.0, 0.0, _CHECK)
        self.pace = LogPace(0.0, 0.0, 0.0)
        self._last: float | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="footprints")
        self._trial: Future[float | None] | None = None
        self._tried_at = -_GATHER_EVERY

    def checked(self, windows: int, seconds: float) -> None:
        """So many windows got a new footprint, which took all tasks together so long."""
        if windows and seconds:
            self.costs = self.costs.updated(check=seconds / windows)

    def epoch(self, rows: int, records: int, busy: float) -> float:
        """An epoch was committed; returns the seconds since the one before, 0 for the first."""
        now = self._clock()
        if rows:
            self.costs = self.costs.updated(replay=busy / rows)
        elif busy:
            self.costs = self.costs.updated(epoch=busy)
        seconds = 0.0 if self._last is None else now - self._last
        self._last = now
        if seconds > 0:
            pace = self.pace
            self.pace = LogPace(
                smoothed(pace.rows, rows / seconds),
                smoothed(pace.records, records / seconds),
                smoothed(pace.epochs, 1 / seconds),
            )
        return seconds

    def gather(self, record: EpochRecord, rules: FootprintRules | None, place: Path) -> None:
        """Now and then, gather the state from the footprints as a recovery would, for nothing but the time it takes.
        `place` is a directory for that."""
        if self._trial is not None and self._trial.done():
            measured = self._trial.result()
            self._trial = None
            if measured is not None:
                self.costs = self.costs.updated(load=measured)
        now = self._clock()
        due = self._trial is None and now - self._tried_at >= _GATHER_EVERY
        if rules is not None and rules.recovery is not None and due:
            if sum(footing.extent.q for footing in record.footings.values()) < _WORTH_GATHERING:
                return
            self._tried_at = now
            self._trial = self._pool.submit(self._gathered, record, place)

    def _gathered(self, record: EpochRecord, place: Path) -> float | None:
        """Seconds per record; None if footprints were removed meanwhile; they are released as the epochs advance."""
        began = time.perf_counter()
        try:
            _, gathered = gather_state(
                self._program, record.footings, record.routing, self._meta, self._root, DirectoryStore(place, False), 0
            )
        except Exception as error:  # noqa: BLE001 - a measurement that fails is no reason to end a run
            _log.debug("the time that gathering takes could not be measured: %s", error)
            return None
        finally:
            remove_tree(place, Private("gathered for a measurement"))
        records = sum(operator.records for operator in gathered)
        return (time.perf_counter() - began) / records if records else None

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
