"""Goals go as far as they must, and no further."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.state.extent import OPEN, LogChange, LogExtent, LogMark, WindowMove, empty_extent
from holdfast.state.goals import (
    FootprintCosts,
    Goal,
    LogPace,
    goal_by_age,
    goal_by_benefit,
    goal_by_size,
    predicted_recovery,
)

NONE_YET = FootprintCosts(0, 0, 0, 0)
COSTS = FootprintCosts(load=2e-4, replay=1e-3, epoch=0.02, check=1e-4, fixed=0.5)


@st.composite
def extents(draw: st.DrawFn, most_marks: int = 8) -> LogExtent:
    """Any extent in which the footprints of an epoch are among its records."""
    marks = []
    for epoch in range(10, 10 + draw(st.integers(1, most_marks))):
        live = draw(st.dictionaries(st.integers(3, 6), st.integers(1, 9), min_size=epoch == 10, max_size=2))
        marks.append(LogMark(epoch, sum(live.values()) + draw(st.integers(0, 5)), draw(st.integers(0, 20)), live))
    return LogExtent(tuple(marks), marks[-1].epoch)


limits = st.none() | st.integers(0, 120)


@settings(max_examples=100, deadline=None)
@given(extents(), limits, limits)
def test_by_size_takes_the_least_prefix_that_is_enough(extent: LogExtent, records: int | None, rows: int | None):
    def over(q: int, u: int) -> tuple[bool, bool]:
        return records is not None and q > records, rows is not None and u > rows

    goal = goal_by_size(extent, records, rows)
    sizes = {before: extent.from_epoch(before) for before in range(extent.oldest, extent.epoch + 2)}
    fine = [before for before, (q, u, _) in sizes.items() if not any(over(q, u))]
    if goal is None:
        least = min(q for q, u, _ in sizes.values())
        assert not any(over(extent.q, extent.u)) or (over(extent.q, extent.u) == (True, False) and extent.q == least)
        return
    q, u, windows = sizes[goal.before]
    assert windows == goal.windows > 0
    assert q < extent.q or u < extent.u
    assert not over(q, u)[1]
    if fine:
        assert goal.before == fine[0]
        assert "at best" not in goal.why
    else:
        assert "at best" in goal.why
        reach = [(q, before) for before, (q, u, _) in sizes.items() if not over(q, u)[1]]
        assert (q, goal.before) == min(reach)


def test_by_size_says_why():
    extent = LogExtent((LogMark(5, 2_000, 10, {OPEN: 41}), LogMark(6, 41, 1_500_000, {OPEN: 9})), 6)
    assert goal_by_size(extent, 1_000, 1_000_000) == Goal(
        6,
        41,
        "2,041 records to read back of 1,000, 1,500,000 rows to replay of 1,000,000: 41 windows older than epoch 6",
    )
    assert goal_by_size(extent, None, None) is None
    assert goal_by_size(empty_extent(3), 0, 0) is None


def test_more_windows_than_records_allowed_do_not_go_round_in_circles():
    """Where each record is a last footprint, a checkpoint would only move it."""
    extent = LogExtent((LogMark(5, 40, 10, {OPEN: 40}), LogMark(6, 30, 10, {OPEN: 30})), 6)
    assert goal_by_size(extent, 50, None) is None
    dead = LogExtent((LogMark(5, 41, 10, {OPEN: 40}), LogMark(6, 30, 10, {OPEN: 30})), 6)
    why = "71 records to read back of 50, 70 records at best: 40 windows older than epoch 6"
    assert goal_by_size(dead, 50, None) == Goal(6, 40, why)


paces = st.builds(
    LogPace,
    rows=st.floats(0, 100),
    records=st.floats(0, 100),
    epochs=st.sampled_from([0.0, 0.5, 1.0, 4.0]),
    share=st.sampled_from([0.1, 1.0]),
)
costs = st.builds(FootprintCosts, *[st.sampled_from([0.0, 1e-3, 0.1])] * 4, fixed=st.sampled_from([0.0, 1.0]))


def foretold(extent: LogExtent, costs: FootprintCosts, pace: LogPace, before: int, horizon: float) -> float:
    """The recovery after `horizon` if the windows older than `before` got new footprints."""
    q, u, _ = extent.from_epoch(before)
    left = [mark.epoch for mark in extent.marks if mark.epoch >= before and mark.live]
    step = 1 / pace.epochs if pace.epochs else 0.0
    replayed = horizon if left else horizon - step
    epochs = extent.epoch - (left[0] if left else extent.epoch) + pace.epochs * replayed
    reading = costs.load * (q + pace.records * horizon)
    return costs.fixed + reading + costs.replay * (u + pace.rows * replayed) + costs.epoch * epochs


@settings(max_examples=200, deadline=None)
@given(extents(), costs, paces, st.sampled_from([0.0, 0.5, 1.5, 4.0, 20.0]))
@example(
    LogExtent((LogMark(10, 1, 0, {3: 1}), LogMark(11, 3, 1, {3: 3}), LogMark(15, 0, 0, {})), 15),
    FootprintCosts(0.0, 0.1, 0.0, 0.1, fixed=0.0),
    LogPace(rows=51.0, records=0.0, epochs=0.0, share=0.1),
    20.0,
)
def test_by_benefit_takes_the_least_prefix_that_meets_the_target(
    extent: LogExtent, costs: FootprintCosts, pace: LogPace, target: float
):
    step = 1 / pace.epochs if pace.epochs else 0.0
    goal = goal_by_benefit(extent, costs, pace, target)
    befores = range(extent.oldest, extent.epoch + 2)
    at_once = [foretold(extent, costs, pace, before, step) for before in befores]
    if goal is None:
        assert at_once[0] <= target + 1e-9 or min(at_once) == pytest.approx(at_once[0])
        return
    assert goal.spare is None
    windows = extent.from_epoch(goal.before)[2]
    assert windows == goal.windows > 0
    horizon = windows * costs.check / pace.share + step
    reached = foretold(extent, costs, pace, goal.before, horizon)
    smaller = [foretold(extent, costs, pace, before, horizon) for before in befores if before < goal.before]
    assert all(other > reached for other in smaller)
    if "cannot" in goal.why:
        assert at_once[goal.before - extent.oldest] == pytest.approx(min(at_once))
        later = [foretold(extent, costs, pace, before, extent.from_epoch(before)[2] * costs.check / pace.share + step)
                 for before in befores if before > goal.before]  # fmt: skip
        assert max([reached, *later]) > target - 1e-9, "a deadline is missed: its own, or one behind it"
        assert float(re.search(r"([0-9.e+]+) s at best", goal.why)[1]) > target * 0.99  # type: ignore[index]
    else:
        assert reached <= target + 1e-9
        assert all(other > target - 1e-9 for other in smaller)


def test_by_benefit_says_why():
    extent = LogExtent(
        (LogMark(16, 41_200, 10, {OPEN: 41_200}), LogMark(17, 0, 100_000, {}), LogMark(18, 50, 0, {OPEN: 50})), 18
    )
    costs = FootprintCosts(load=1e-5, replay=1e-5, epoch=0.5, check=1e-6)
    goal = goal_by_benefit(extent, costs, LogPace(10, 10, 1), 2)
    assert goal == Goal(17, 41_200, "recovery would take 2.93 s of 2 s: 41,200 windows older than epoch 17")
    goal = goal_by_benefit(extent, costs, LogPace(10, 10, 1), 0.1)
    assert goal is not None
    assert goal.before == 19
    assert "cannot be brought within it, 0.433 s at best" in goal.why


def test_what_is_not_measured_counts_for_nothing():
    extent = LogExtent((LogMark(5, 40, 10, {OPEN: 3}), LogMark(6, 30, 10, {OPEN: 1})), 6)
    assert goal_by_benefit(extent, NONE_YET, LogPace(0, 0, 0), 1) is None
    assert goal_by_benefit(extent, FootprintCosts(0, 0, 0, 0, fixed=3), LogPace(9, 9, 1), 1) is None
    assert goal_by_benefit(empty_extent(6), COSTS, LogPace(9, 9, 1), 0) is None
    assert goal_by_benefit(extent, COSTS, LogPace(0, 0, 0), 0.55) is None
    assert goal_by_benefit(extent, COSTS, LogPace(0, 0, 0), 0.54) is not None
    with pytest.raises(ValueError, match="share"):
        LogPace(1, 1, 1, share=0)


def test_measurements_are_smoothed_once_there_is_one():
    assert (first := NONE_YET.updated(load=2.0, check=1.0)) == FootprintCosts(2.0, 0, 0, 1.0)
    assert first.updated(load=1.0, replay=4.0) == FootprintCosts(pytest.approx(1.7), 4.0, 0, 1.0)


def test_panes_that_close_in_time_are_spared():
    extent = LogExtent((LogMark(5, 9, 10, {3: 4, 4: 3, 9: 2}), LogMark(6, 3, 10, {9: 3})), 6)
    costs, pressing = FootprintCosts(load=0, replay=0, epoch=1, check=0.01), LogPace(10, 1, epochs=1, classes=1)
    goal = goal_by_benefit(extent, costs, pressing, 1.5)
    assert goal is not None
    assert (goal.before, goal.windows, goal.spare) == (6, 5, 3)
    assert goal_by_benefit(extent, costs, LogPace(10, 1, epochs=1, classes=7), 1.5) is None
    goal = goal_by_benefit(extent, costs, LogPace(10, 1, epochs=1, classes=1, closed=1), 1.5)
    assert goal is not None
    assert (goal.windows, goal.spare) == (9, None)
    assert goal_by_benefit(extent, costs, pressing, 3.5) is None


@pytest.mark.parametrize(("many", "target"), [(900, 20), (60, 3.015)])
def test_a_small_share_means_an_early_start(many: int, target: float):
    """Also where the oldest mark alone would do for now: the next one cannot be done in the time that is left."""
    extent = LogExtent((LogMark(5, 1, 0, {OPEN: 1}), LogMark(6, many, 0, {OPEN: many}), LogMark(7, 0, 0, {})), 7)
    costs = FootprintCosts(load=0, replay=0, epoch=1, check=0.01)
    assert goal_by_benefit(extent, costs, LogPace(0, 0, 1, share=1), target) is None
    goal = goal_by_benefit(extent, costs, LogPace(0, 0, 1, share=0.5), target)
    assert goal is not None
    assert (goal.before, goal.windows) == (7, many + 1)


EPOCHS, FEW_ROWS, ROWS, RECORDS, KEYS, LASTING = 300, 50, 100, 60, 120, 10
MOST_ROWS, MOST_RECORDS = 5 * ROWS, 2 * KEYS


@dataclass
class Run:
    """A stream of an epoch per second that executes its goals at once. Few keys are fast, most are slow; with
    panes, each has a window per pane, and an epoch closes a pane."""

    ask: Callable[[LogExtent], Goal | None]
    seed: int
    panes: bool
    seen: list[LogExtent] = field(default_factory=list)
    checked: int = 0

    def __post_init__(self) -> None:
        extent = empty_extent(0)
        last: dict[tuple[int, int], tuple[int, int]] = {}
        for epoch in range(1, EPOCHS + 1):
            goal = self.ask(extent)
            dice = random.Random(self.seed * EPOCHS + epoch)
            pane = epoch if self.panes else OPEN
            closed = pane - LASTING if self.panes else None
            keys = {min(int(dice.paretovariate(0.4)), KEYS) for _ in range(dice.randrange(RECORDS))}
            touched = [(key, pane) for key in keys if not self.panes or (key, pane) not in last]
            before, spare = (goal.before, goal.spare) if goal else (0, None)
            old = [w for w, (tau, name) in last.items() if tau < before and (spare is None or name > spare)]
            due = [window for window in old if window not in touched]
            moved = Counter(last[window] for window in [*touched, *due] if window in last)
            opened = sum(window not in last for window in touched)
            moves = tuple(WindowMove(tau, name, name, n) for (tau, name), n in moved.items())
            last |= {window: (epoch, window[1]) for window in [*touched, *due]}
            last = {window: seen for window, seen in last.items() if closed is None or window[1] > closed}
            records = opened + sum(moved.values())
            extent = extent.after(
                LogChange(epoch, records, dice.randint(FEW_ROWS, ROWS), {pane: opened}, moves, closed)
            )
            self.seen.append(extent)
            self.checked += len(due)

    def longest(self, costs: FootprintCosts) -> float:
        return max(predicted_recovery(extent, costs) for extent in self.seen)


@pytest.mark.parametrize("panes", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_by_size_keeps_a_stream_within_its_bounds(seed: int, panes: bool):
    free = Run(lambda extent: None, seed, panes)
    assert max(extent.u for extent in free.seen) > MOST_ROWS + ROWS
    assert panes or max(extent.q for extent in free.seen) > MOST_RECORDS + RECORDS
    run = Run(lambda extent: goal_by_size(extent, MOST_RECORDS, MOST_ROWS), seed, panes)
    assert run.checked > 0
    assert max(extent.q for extent in run.seen) <= MOST_RECORDS + RECORDS
    assert max(extent.u for extent in run.seen) <= MOST_ROWS + ROWS


@pytest.mark.parametrize("panes", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_by_benefit_keeps_the_target_with_fewer_checkpoints(seed: int, panes: bool):
    """The target is what the bounds of the other policy vouch for: bounds in seconds would have to be set like this."""
    by_size = Run(lambda extent: goal_by_size(extent, MOST_RECORDS, MOST_ROWS), seed, panes)
    rows = MOST_ROWS + ROWS
    target = COSTS.fixed + COSTS.load * (MOST_RECORDS + RECORDS) + COSTS.replay * rows + COSTS.epoch * rows / FEW_ROWS

    def ask(extent: LogExtent) -> Goal | None:
        pace = LogPace(ROWS, RECORDS, 1, classes=1.0 if panes else 0.0, closed=extent.epoch - LASTING)
        return goal_by_benefit(extent, COSTS, pace, target)

    by_benefit = Run(ask, seed, panes)
    assert Run(lambda extent: None, seed, panes).longest(COSTS) > target
    assert by_size.longest(COSTS) <= target
    assert by_benefit.longest(COSTS) <= target
    assert 0 < by_benefit.checked < by_size.checked


def test_no_more_epochs_are_replayed_than_a_record_should_list():
    extent = empty_extent(0).after(LogChange(1, 3, 10, {0: 3}, ()))
    for epoch in range(2, 12):
        extent = extent.after(LogChange(epoch, 1, 1, {0: 1}, ()))
    assert goal_by_age(extent, 10) is None
    goal = goal_by_age(extent, 9)
    assert goal is not None
    assert goal.before == 7
    assert goal.windows == 3 + 5
