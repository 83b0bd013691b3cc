"""The suite for sinks: what `connect/base.py` says a sink must do, and the guarantee that the sink itself declares."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import polars as pl

from holdfast.connect.base import DriverSink, Sink, TaskSink
from holdfast.connect.sources.memory import memory
from holdfast.errors import WrongTypeError
from holdfast.graph.pipeline import Pipeline
from holdfast.testkit.crash_runs import CrashedRun, CrashLog, chosen, run_with_crashes
from holdfast.testkit.driver_sink_checks import DriverSinkChecks
from holdfast.testkit.hand_run import InProcess, Rows
from holdfast.testkit.promises import Promises
from holdfast.testkit.sink_places import SinkGuarantee, SinkPlaces, guarantee_of
from holdfast.testkit.stepping import EpochCut
from holdfast.testkit.task_sink_checks import TaskSinkChecks

__all__ = ["check_sink"]

_SAMPLE = pl.DataFrame(
    {"number": range(12), "text": [f"row {n}" for n in range(12)], "value": [n / 4 for n in range(12)]},
    schema={"number": pl.Int64, "text": pl.String, "value": pl.Float64},
)


def check_sink(
    make_sink: Callable[[str], Sink],
    read: Callable[[str], Rows],
    *,
    rows: pl.DataFrame | None = None,
    guarantee: SinkGuarantee | None = None,
    hang: Callable[[], AbstractContextManager[Any]] | None = None,
    slow: Callable[[], AbstractContextManager[Any]] | None = None,
    deadline: float = 60.0,
    crashes: int = 40,
    seed: int | None = None,
) -> None:
    """Check that a sink keeps what `TaskSink` or `DriverSink` promises, and its guarantee; an AssertionError says which
    promise is broken, where, with the rows that differ and the seed.

    `make_sink` makes a sink that writes to a place of this name (a directory, a table, a topic), each time as another
    process would; every check uses new places. `read` gives the rows that a reader sees there, in any order; none where
    there is nothing yet. `rows` are what is written, at least six and no two alike; by default a number, a text and a
    float. The guarantee is how the sink's own sentence begins, unless it is given. `hang` and `slow` are
    context managers in which the server does not answer, or is slow: calls must come back within `deadline` seconds,
    and a slow server changes nothing. Of the lines and steps at which a crash
    is possible, `crashes` are tried, chosen by `seed`.
    """
    first = make_sink("first")
    if not isinstance(first, TaskSink | DriverSink):
        raise WrongTypeError(
            f"check_sink was given a {type(first).__name__}",
            cure="let make_sink return an object of a subclass of hf.sink.TaskSink or hf.sink.DriverSink",
        )
    sample = _SAMPLE if rows is None else rows
    promises = Promises("check_sink", first.describe(), seed)
    places = SinkPlaces(make_sink, read, sample, guarantee or guarantee_of(first), promises)
    checks = TaskSinkChecks(places) if isinstance(first, TaskSink) else DriverSinkChecks(places)
    checks.protocol()
    checks.deaths(crashes)
    if hang is not None:
        checks.outage(hang, deadline)
    if slow is not None:
        with slow(), promises.promise("a slow server changes nothing"):
            _run(places, CrashedRun(EpochCut(tasks=2)))
    _runs(places, crashes)


def _runs(places: SinkPlaces, crashes: int) -> None:
    """Runs of the engine itself, into the sink."""
    promises = places.promises
    with promises.promise("the guarantee is kept when a run crashes at any step and starts again"):
        log = _run(places, CrashedRun(EpochCut(tasks=2)))
        for step in chosen(range(1, len(log.reached) + 1), crashes, promises.random):
            _run(places, CrashedRun(EpochCut(tasks=2), (step,)))
        for attempt in chosen(range(1, log.attempts + 1), max(1, crashes // 10), promises.random):
            _run(places, CrashedRun(EpochCut(tasks=2), loses=attempt))


def _run(places: SinkPlaces, case: CrashedRun) -> CrashLog:
    place, rows = places.new(), places.rows
    third = max(1, rows.height // 3)
    epochs = [rows[:third], rows[:0], rows[third : 2 * third], rows[2 * third :]]

    def declare() -> Pipeline:
        pipeline = Pipeline("suite")
        pipeline.source("in", memory(epochs, epochs=True)).sink("out", places.made(place))
        return pipeline

    log = CrashLog()
    with InProcess(declare, keep=["in", "out"]) as kit:
        try:
            run_with_crashes(kit, case, log)
        except Exception as error:
            raise places.promises.broken(log.told(case), f"the run failed: {error}") from error
    if log.died:
        places.compare(place, rows, log.told(case))
    else:
        places.all_of(place, rows, log.told(case))
    return log
