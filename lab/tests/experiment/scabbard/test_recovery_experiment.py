"""The `recovery` experiment: input that arrives by the clock, and following a run that is killed, without a process."""

from __future__ import annotations

import pickle
from typing import Any, cast

import polars as pl
import pytest

from holdfast.connect.sources.memory import memory
from holdfast_lab.experiment.arriving_source import ArrivingSource
from holdfast_lab.experiment.scabbard.kill_recovery import PreparedQuery
from holdfast_lab.experiment.scabbard.kill_timeline import Kill, KillTimeline, run_with_kills
from holdfast_lab.experiment.scabbard.killed_run import KilledProcess

PHASES = {"progress": 0.01, "upstream request": 0.02, "data": 0.03, "replay": 0.2}


def arriving(now: list[float], taken: list[tuple[int, float]]) -> ArrivingSource:
    return ArrivingSource(
        memory(pl.DataFrame({"n": range(10)})), 2, 1.0, lambda number, at: taken.append((number, at)), lambda: now[0]
    )


def test_the_rows_of_an_epoch_are_there_when_they_have_arrived_and_wait_for_a_reader() -> None:
    now, taken = [100.0], list[tuple[int, float]]()
    source = arriving(now, taken)
    first = source.take(source.start(), 50, 1)
    assert [piece.rows for piece in first.slices] == [2]
    assert source.take(first.position, 50, 1).slices == ()
    now[0] = 103.5  # nobody has read for a while
    position = first.position
    for _ in range(3):
        found = arriving(now, taken).take(position, 50, 1)  # also after a restart
        assert [piece.rows for piece in found.slices] == [2]
        position = found.position
    assert source.take(position, 50, 1).slices == ()
    assert taken == [(1, 100.0), (2, 101.0), (3, 102.0), (4, 103.0)]


def test_tasks_get_the_source_without_what_only_the_driver_needs() -> None:
    source = arriving([0.0], [])
    piece = source.take(source.start(), 2, 1).slices[0]
    copy = pickle.loads(pickle.dumps(source))
    assert [chunk.frame["n"].to_list() for chunk in copy.read(piece)] == [[0, 1]]


def test_epochs_arrive_at_half_the_greatest_rate() -> None:
    prepared = PreparedQuery("LRB1", cast("Any", None), cast("Any", None), 10, 1_000, 5_000.0)
    assert prepared.pause == pytest.approx(0.4)


def commit(epoch: int, at: float, started: float | None = None) -> dict[str, Any]:
    return {"event": "commit", "epoch": epoch, "rows": 10, "started": started or at - 0.1, "committed": at, "at": at}


def taken(number: int, arrived: float) -> dict[str, Any]:
    return {"event": "taken", "number": number, "arrived": arrived, "at": arrived}


def recovered(at: float) -> dict[str, Any]:
    return {"event": "recovered", "at": at, "seconds": PHASES, "replayed": 1, "units": 4, "bytes": 99, "epoch": 6}


def killed_run() -> KillTimeline:
    """Epochs arrive every second and wait 0.5 s; killed at 7.2, up again at 12, then two epochs a second."""
    told = KillTimeline()
    for number in range(1, 7):
        told.on_event(taken(number, float(number)))
        told.on_event(commit(number, number + 0.5))
    told.on_event(taken(7, 7.0))
    assert told.up
    told.on_kill(7.2, 7.3)
    assert not told.up
    for kind, at in (("imported", 8.3), ("session", 10.3), ("warm", 11.7)):
        told.on_event({"event": kind, "at": at})
    told.on_event(recovered(12.0))
    told.on_event(commit(7, 12.0))
    for number in range(8, 20):
        at = max(12 + (number - 7) / 2, number + 0.5)
        told.on_event(taken(number, float(number)))
        told.on_event(commit(number, at))
    return told


def test_the_time_after_a_kill_is_told_apart_into_start_and_recovery() -> None:
    [struck] = killed_run().struck
    assert struck.start == pytest.approx(4.4)
    assert struck.recovery == pytest.approx(0.3)
    steps = struck.steps(list(PHASES))
    assert steps == pytest.approx([1.0, 2.0, 1.4, 0.04, 0.01, 0.02, 0.03, 0.2])
    assert sum(steps) == pytest.approx(struck.start + struck.recovery)
    assert (struck.replayed, struck.units, struck.bytes) == (1, 4, 99)


def test_a_run_has_caught_up_when_rows_wait_no_longer_than_usual() -> None:
    told = killed_run()
    [struck] = told.struck
    waits = {commit.epoch: commit.waited for commit in told.commits}
    assert waits[7] == pytest.approx(5.0)
    first = min(epoch for epoch, waited in waits.items() if epoch > 7 and waited <= 1.0)
    assert struck.caught_up == pytest.approx(first + waits[first] - 7.2)


def test_throughput_is_told_before_and_after() -> None:
    before, after = killed_run().throughput()
    assert before == pytest.approx(10.0)
    assert after is not None
    assert after > 15.0


class Scripted:
    """A process that tells what it is told to, and notes what is done to it."""

    def __init__(self, lives: list[list[dict[str, Any]]], fails: bool = False) -> None:
        self._lives = lives
        self._fails = fails
        self._life: list[dict[str, Any]] = []
        self.done: list[str] = []
        self.started_at = 0.0

    def start(self) -> None:
        self.done.append("start")
        self._life = self._lives.pop(0)

    def ended(self) -> bool:
        if self._fails:
            raise RuntimeError("ended badly")
        return not self._life

    def events(self) -> list[dict[str, Any]]:
        return [self._life.pop(0)] if self._life else []

    def kill_all(self) -> None:
        self.done.append("kill")
        self._life = []


def test_a_kill_comes_in_the_epoch_asked_for_and_only_once_it_has_recovered_from_the_last() -> None:
    first = [taken(1, 1.0), commit(1, 1.5), taken(2, 2.0), commit(2, 2.5), taken(3, 3.0), commit(3, 3.5)]
    second = [{"event": "warm", "at": 5.0}, recovered(5.2), commit(2, 5.3), taken(3, 3.0), commit(3, 5.5)]
    third = [recovered(7.0), commit(3, 7.5)]
    process = Scripted([first, second, third])
    told = run_with_kills(cast("KilledProcess", process), [Kill(2, 2, 0.0, 1.0)] * 2)
    assert process.done == ["start", "kill", "start", "kill", "start", "kill"]
    assert [struck.recovered_at for struck in told.struck] == [5.2, 7.0]
    assert [commit.epoch for commit in told.commits] == [1, 2, 3]


def test_nothing_is_left_running_when_a_run_fails() -> None:
    process = Scripted([[]], fails=True)
    with pytest.raises(RuntimeError, match="badly"):
        run_with_kills(cast("KilledProcess", process), [])
    assert process.done == ["start", "kill"]


def test_a_kill_waits_until_the_run_keeps_up_but_not_for_ever() -> None:
    told = KillTimeline()
    kill = Kill(epoch=2, latest=4, seconds=0.0, waited=0.5)
    for number, waited, due in ((1, 0.4, False), (2, 3.0, False), (3, 0.4, True), (3, 3.0, False), (4, 3.0, True)):
        told.on_event(taken(number, 10.0))
        told.on_event(commit(number, 10.0 + waited))
        assert kill.due(told) is due
