"""`holdfast bench latency`: the schedule does not wait, latencies are those of a naive count, bars can fail."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast_lab.bench.latency_bench import LatencyBench, LatencyResult
from holdfast_lab.bench.latency_elsewhere import arriving, per_tick
from holdfast_lab.bench.open_loop import CommitLog, LatencyOfRows, RowSchedule, ScheduledSource, checkpoint_latency
from holdfast_lab.bench.quiet_pipeline import QuietFigures

SCHEDULE = RowSchedule(rate=1_000.0, warm=1.0, seconds=2.0, keys=7, began=100.0)


def test_rows_arrive_by_the_clock_whatever_was_taken() -> None:
    now = [50.0]
    begun: list[RowSchedule] = []
    source = ScheduledSource(replace(SCHEDULE, began=0.0), begun.append, lambda: now[0])
    first = source.take(source.start(), 10_000, 2)
    assert (first.position, begun) == ({"row": 1}, []), "one row, so that what starts once has started"
    now[0] = 100.0
    assert source.take(first.position, 10_000, 2).slices == ()
    assert begun == [SCHEDULE]
    now[0] = 100.5
    some = source.take(first.position, 200, 2)
    assert (some.position, source.lag(some.position)) == ({"row": 201}, 299)
    now[0] = 1_000.0
    rest = source.take(some.position, 1_000_000, 3)
    assert rest.position == {"row": SCHEDULE.rows}
    rows = [chunk.frame for piece in rest.slices for chunk in source.read(piece)]
    assert [row for frame in rows for row in frame.rows()] == SCHEDULE.frame(201, SCHEDULE.rows).rows()
    assert SCHEDULE.frame(500, 501)["event_time"].to_list() == [100_500_000]


@pytest.mark.parametrize("seed", range(10))
def test_a_row_is_done_with_the_first_commit_that_contains_it(seed: int) -> None:
    chance = random.Random(seed)
    log, rows, when = CommitLog(), 0, 100.0
    while rows < SCHEDULE.rows:
        rows, when = rows + chance.randrange(1, 400), when + chance.random() / 3
        log.add(min(rows, SCHEDULE.rows), when)
    naive = []
    for row in range(SCHEDULE.first, SCHEDULE.rows):
        done = next(time for contained, time in zip(log.rows, log.times, strict=True) if contained > row)
        naive.append(1_000 * (done - (100.0 + row / 1_000)))
    found = log.latency(SCHEDULE, when)
    assert (found.p50, found.p99, found.p999) == pytest.approx(np.quantile(naive, [0.5, 0.99, 0.999]), abs=0.01)
    assert (found.rows, found.kept_up) == (2_000, True)


def test_rows_that_were_never_committed_count_with_the_time_they_waited() -> None:
    log = CommitLog([1_500], [101.6])
    found = log.latency(SCHEDULE, 110.0)
    assert not found.kept_up
    assert found.p99 > 7_000


def test_with_checkpoints_a_row_is_done_when_the_first_ends_that_began_after_it() -> None:
    every = [(100.0 + number, 100.0 + number + 0.25) for number in range(10)]
    found = checkpoint_latency(every, SCHEDULE, kept_up=True)
    assert found is not None
    assert (found.p50, found.p99) == (pytest.approx(750, abs=1), pytest.approx(1_240, abs=1))
    assert checkpoint_latency([], SCHEDULE, kept_up=True) is None


def result(p50: float, *, load: str = "sliding", kept_up: bool = True, system: str = "Holdfast") -> LatencyResult:
    return LatencyResult(system, load, 10_000, LatencyOfRows(p50, 20.0, 30.0, 1, 1, kept_up))


def test_a_rate_that_nothing_is_promised_for_has_no_bar() -> None:
    bench = LatencyBench((replace(result(9.0), rate=20_000), result(9.0)))
    assert [bar["name"] for bar in bench.bars()] == [
        f"sliding at 10,000 rows/s, {name} in ms" for name in ("p50", "p99")
    ]
    assert bench.notes() == [], "there is nothing to compare with"
    assert LatencyBench((result(9.0, system="Structured Streaming"),)).to_json()["notes"]


@pytest.mark.parametrize(("rate", "rows"), [(10_000, 100), (1_000_000, 10_000), (12_345, 823), (50, 1), (250, 5)])
def test_flink_is_given_as_many_rows_as_the_schedule_has(rate: int, rows: int) -> None:
    assert per_tick(rate) == rows
    assert rate % rows == 0
    told = "".join(arriving(rate, 7))
    assert f"'rows-per-second' = '{rate // rows}'" in told
    assert f"`tick` * {rows}" in told


def test_bars_are_missed_by_what_is_too_slow_or_does_not_keep_up() -> None:
    other = result(1.0, system="Structured Streaming")
    bench = LatencyBench((result(9.0), result(11.0), result(11.0, load="keyed"), result(1.0, kept_up=False), other))
    told = json.loads(json.dumps(bench.to_json()))["bars"]
    assert [bar["ok"] for bar in told] == [True, True, False, True, True, True, False, False]
    assert told[4] == {"name": "keyed at 10,000 rows/s, p50 in ms", "value": 11.0, "bar": 20.0, "ok": True}


def test_the_plot_shows_every_system(tmp_path: Path) -> None:
    systems = ("Holdfast", "Structured Streaming", "Flink, a checkpoint every 100 ms")
    results = [replace(result(5.0, system=system), rate=rate) for system in systems for rate in (10_000, 100_000)]
    paths = LatencyBench(tuple(results)).plot(tmp_path)
    assert [path.name for path in paths] == ["latency.png", "latency.svg"]
    assert all(system in paths[1].read_text() for system in systems)


def test_a_quiet_pipeline_is_held_against_its_bar() -> None:
    assert QuietFigures("crew", 10.0, 0.005, 0.005, 0.005).to_json()["bars"][0]["ok"]
    assert not QuietFigures("crew", 10.0, 0.01, 0.005, 0.006).to_json()["bars"][0]["ok"]
