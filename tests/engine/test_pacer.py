"""The pacer: epochs near the target, always within their bounds."""

from __future__ import annotations

import random

import polars as pl
import pytest

import holdfast as hf
from holdfast.engine.options import RunOptions
from holdfast.engine.pacer import Pacer, Readers, Widening
from holdfast.engine.scaling_rules import Scaling
from holdfast.plan.program import Program, compile_program
from holdfast.state.routing import Routing


@pytest.mark.parametrize("seed", range(30))
def test_rows_stay_within_bounds_whatever_is_measured(seed):
    chance = random.Random(seed)
    least, most = chance.choice([(1, 1), (20_000, 1_000_000_000), (10, 5_000)])
    pacer = Pacer(chance.choice([0.05, 1.0, 30.0]), least, most)
    for _ in range(100):
        before = pacer.rows
        pacer.measured(
            int(chance.choice([0, -1, 1, before, before / 3, 10**10])), chance.choice([0.0, -1.0, 1e-9, 0.5, 1e6])
        )
        assert least <= pacer.rows <= most
        assert isinstance(pacer.rows, int)
        assert pacer.rows <= max(least, before * 64), "no epoch is very many times larger than the one before"


def test_the_most_rows_hold_even_below_the_least():
    pacer = Pacer(1.0, 20_000, 100)
    assert pacer.rows == 100
    pacer.measured(100, 0.01)
    assert pacer.rows == 100


@pytest.mark.parametrize("speed", [1_000, 500_000, 80_000_000])
def test_a_steady_speed_brings_epochs_of_the_target(speed):
    pacer = Pacer(0.5, 100, 10**9)
    for _ in range(40):
        pacer.measured(pacer.rows, pacer.rows / speed)
    assert pacer.rows == pytest.approx(0.5 * speed, rel=0.01)


class System:
    """An epoch costs `fixed` seconds, and so much for each row."""

    def __init__(self, pacer: Pacer, fixed: float, per_row: float) -> None:
        self.pacer, self.fixed, self.per_row = pacer, fixed, per_row

    def run(self, waiting: int) -> tuple[int, float]:
        """An epoch while so many rows wait: what it took, and how long."""
        rows = min(waiting, self.pacer.rows)
        seconds = self.fixed + rows * self.per_row
        self.pacer.measured(rows, seconds)
        return rows, seconds


def test_a_backlog_is_read_in_epochs_of_full_size_after_two_small_ones():
    system = System(Pacer(1.0, 20_000, 10**9), fixed=0.004, per_row=1e-8)
    sizes = [system.run(10**9)[0] for _ in range(5)]
    assert sizes[0] == 20_000
    assert sizes[2] >= 0.5 * sizes[-1], sizes


def test_rows_that_come_slowly_are_not_waited_for_and_leave_room_for_a_burst():
    system = System(Pacer(0.02, 20_000, 10**9), fixed=0.004, per_row=1e-7)
    for _ in range(200):
        assert system.run(40) == (40, pytest.approx(0.004, rel=0.01))
    assert system.pacer.rows == 20_000
    assert system.run(100_000)[0] == 20_000


def test_epochs_grow_under_overload_as_far_as_that_gets_more_rows_through_and_come_back():
    system = System(Pacer(0.002, 100, 10**9), fixed=0.01, per_row=1e-6)
    for _ in range(200):
        rows, seconds = system.run(10**9)
    assert seconds <= 1.0
    assert rows / seconds > 0.6e6, "of the million rows a second that epochs without end would reach"
    for _ in range(20):
        system.run(1)
    assert system.pacer.rows == 100


def test_a_target_that_costs_little_is_kept_under_overload():
    system = System(Pacer(0.1, 100, 10**9), fixed=0.001, per_row=1e-6)
    lengths = [system.run(10**9)[1] for _ in range(200)]
    assert sorted(lengths)[len(lengths) // 2] == pytest.approx(0.1, rel=0.05)


def test_a_slow_epoch_makes_the_next_ones_smaller():
    pacer = Pacer(1.0, 100, 10**9, rows=1_000_000)
    pacer.measured(1_000_000, 10.0)
    assert pacer.rows == 100_000


def test_a_source_with_little_to_give_does_not_shrink_the_epochs():
    pacer = Pacer(1.0, 100, 10**9, rows=1_000_000)
    pacer.measured(10, 1.0)
    assert pacer.rows == 1_000_000


def test_one_task_reads_short_epochs_alone_while_it_is_quick() -> None:
    readers = Readers(0.01)
    assert readers.tasks(4) == 4, "nothing is known yet"
    readers.measured(0.001)
    assert readers.tasks(4) == 1
    for _ in range(8):
        readers.measured(0.008)
    assert readers.tasks(4) == 4, "one task would need most of the time that an epoch has"


def test_all_tasks_read_where_no_short_latency_is_asked_for() -> None:
    readers = Readers(1.0)
    readers.measured(0.001)
    assert readers.tasks(4) == 4


def two_counts() -> Program:
    """Two counts by key, one of which says how many partitions it has, and one of all rows."""
    pipeline = hf.Pipeline("wide")
    rows = pipeline.source(
        "rows", hf.source.memory(pl.DataFrame({"key": [1], "ts": [1]})), event_time="ts", time_unit="s"
    )
    rows.key_by("key").window(hf.window.tumbling(1), name="counts").agg(n=hf.count()).sink("a", hf.sink.collect())
    one = rows.key_by("key").window(hf.window.tumbling(1), name="one", partitions=1)
    one.agg(n=hf.count()).sink("b", hf.sink.collect())
    rows.window(hf.window.tumbling(1), name="all").agg(n=hf.count()).sink("c", hf.sink.collect())
    return compile_program(pipeline)


def test_an_operator_gets_a_second_partition_when_assembling_stays_too_slow():
    program, alone = two_counts(), {name: Routing() for name in ("counts", "one", "all")}
    widening = Widening(0.01)
    for seconds in [0.05] * 7 + [0.01] + [0.05] * 7:
        widening.measured(seconds, 0.002)
        assert widening.routing(program, alone) == alone, "one epoch in between was fast"
    widening.measured(0.05, 0.002)
    wide = widening.routing(program, alone)
    assert {name: routing.partitions for name, routing in wide.items()} == {"counts": 2, "one": 1, "all": 1}
    assert widening.routing(program, wide) == wide
    assert widening.routing(program, alone) == alone, "somebody has scaled it to one partition since"


def test_more_partitions_do_not_help_where_reading_is_slow():
    program, alone = two_counts(), {name: Routing() for name in ("counts", "one", "all")}
    widening = Widening(0.01)
    for _ in range(100):
        widening.measured(0.05, 0.04)
    assert widening.routing(program, alone) == alone


@pytest.mark.parametrize(
    ("given", "partitions"),
    [
        ({}, 2),
        ({"latency": "50ms"}, 1),
        ({"latency": "51ms"}, 2),
        ({"latency": "10ms", "partitions": 3}, 3),
        ({"latency": "10ms", "scaling": Scaling()}, 2),
    ],
)
def test_operators_begin_alone_where_a_short_latency_is_asked_for(given, partitions):
    assert RunOptions(**given).first_partitions == partitions
