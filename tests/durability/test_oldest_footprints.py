"""The oldest footprints move, whatever kept their windows from getting a new one, and nothing they need is released."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from eventual_harness import Death, Life, Script, Story, tell

import holdfast as hf
from harness import Cut
from holdfast.durability.footprint_log import FootprintLogs
from holdfast.engine.authority import HeldAuthority
from holdfast.engine.lease import LeaseKeeper
from holdfast.epoch.record import new_record
from holdfast.graph.policies import OPEN_ONLY, EventualPolicy
from holdfast.graph.windows import Window
from holdfast.meta import MetaStore
from holdfast.operators.footprint_messages import FootprintsLeft
from holdfast.operators.footprint_trace import FootprintTrace
from holdfast.plan.program import compile_program
from holdfast.state.extent import LogExtent, WindowMove
from holdfast.state.goals import FootprintRules, Goal
from holdfast.state.routing import Routing

ROWS = EventualPolicy(FootprintRules(most_rows=15, spend=1e6, period=1e-3))


def windowed(keys: list[int], times: list[int], window: Window) -> Callable[[], hf.Pipeline]:
    frame = pl.DataFrame({"ts": times, "k": keys})

    def build() -> hf.Pipeline:
        pipeline = hf.Pipeline("test")
        rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
        rows.key_by("k").window(window, name="windows").agg(n=hf.count()).sink("out", hf.sink.collect())
        return pipeline

    return build


def extents_of(build: Callable[[], hf.Pipeline]) -> list[LogExtent]:
    """Of all epochs, in their order."""
    seen: list[LogExtent] = []

    def witness(life: Life, epoch: int, replayed: bool) -> None:
        seen.append(life.footprints._logs["windows"].extent)

    tell(build, Script(cut=Cut(rows=10, partitions=1), policy=ROWS, retain=2), witness)
    return seen


def test_windows_that_there_was_no_time_for_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that had rows when their footprint was too old, and none since."""
    real = FootprintTrace.oldest

    def one(self: FootprintTrace, *arguments: Any) -> Iterator[Any]:
        return (some[:1] for some in islice(real(self, *arguments), 1))

    monkeypatch.setattr(FootprintTrace, "oldest", one)
    keys = [*range(10), *range(10), *(100 + i % 3 for i in range(40)), *(200 + i % 3 for i in range(100))]
    extents = extents_of(windowed(keys, [i // 8 for i in range(160)], hf.window.count(50)))
    assert extents[-1].epoch - extents[-1].oldest <= 4
    assert max(extent.u for extent in extents) <= 120


def test_windows_that_were_spared_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because their pane was to close soon, and did not."""

    def goal(self: FootprintLogs, log: object, rules: FootprintRules) -> Goal | None:
        extent = log.extent  # type: ignore[attr-defined]
        if not extent.marks:
            return None
        top = max(pane for mark in extent.marks for pane in mark.live)
        return Goal(extent.epoch + 1, 1, "spared", spare=top + 5) if extent.epoch < 5 else Goal(extent.epoch, 1, "all")

    monkeypatch.setattr(FootprintLogs, "_goal", goal)
    keys = [i % 50 if i < 50 else 1_000 + i // 10 for i in range(160)]
    extents = extents_of(windowed(keys, [0] * 160, hf.window.tumbling("100s")))
    assert extents[3].oldest == 1, "they were spared at first"
    assert extents[-2].oldest >= extents[-2].epoch - 1


@pytest.mark.parametrize("death", [8, 9, 10, 11])
def test_state_that_happens_to_be_durable_releases_no_footprint(death: int) -> None:
    """Merges write to the stable tier: now and then all state may lie there while windows are open."""

    def durable(life: Life, epoch: int, replayed: bool) -> None:
        if epoch == 6 and not replayed:
            for file in life.tiers.volatile.rglob("*.arrow"):
                copy = life.tiers.stable / file.relative_to(life.tiers.volatile)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)

    keys = [0 if i < 9 else 1 if i < 15 else 2 if i < 18 else i % 4 for i in range(200)]
    build = windowed(keys, [i // 8 for i in range(200)], hf.window.count(12))
    script = Script(cut=Cut(rows=10, partitions=1), policy=OPEN_ONLY, retain=2, empty=frozenset({6}))
    expected = tell(build, script, before_commit=durable)
    story = tell(build, replace(script, deaths=(Death(death),)), before_commit=durable)
    assert put_out(story) == put_out(expected)


def put_out(story: Story) -> list[tuple[object, ...]]:
    frames = [frame for epoch in story.outputs.values() for frame in epoch.values()]
    return sorted(row for frame in frames for row in frame.rows())


def test_an_account_that_does_not_add_up_begins_anew_for_all_operators(tmp_path: Path) -> None:
    """The epoch has no control records then: those who were right have no footprints of it in the log either."""
    pipeline = hf.Pipeline("two")
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"k": [1], "ts": [1]})), event_time="ts", time_unit="s")
    for name in ("one", "two"):
        rows.key_by("k").window(hf.window.count(5), name=name).agg(n=hf.count()).sink(f"{name}-out", hf.sink.collect())
    program, meta = compile_program(pipeline), MetaStore(tmp_path)
    keeper = LeaseKeeper(meta, "two", lambda: 0.0)
    logs = FootprintLogs(program, meta, tmp_path, False, HeldAuthority(meta, keeper), lambda: 0.0)
    keeper.lease = meta.acquire("two", "test", 0.0, 30.0)
    record = new_record(program, 1)
    logs.begin(record, 0)
    routing = {name: Routing() for name in ("one", "two")}

    def opening(epoch: int) -> dict[str, bool]:
        wanted = logs.orders(epoch, ROWS.footprints, routing, replayed={})
        return {name: change.opening for name, change in wanted.items()}

    def told(opened: dict[int, int], *moved: WindowMove) -> dict[int, FootprintsLeft]:
        return {0: FootprintsLeft(None, "", opened, moved)}

    assert opening(1) == {"one": True, "two": True}
    footings, _ = logs.committed(1, {"one": told({0: 3}), "two": told({0: 3})}, 3, 0.1)
    assert footings.keys() == {"one", "two"}
    assert opening(2) == {"one": False, "two": False}
    assert logs.committed(2, {"one": told({0: 1}), "two": told({}, WindowMove(1, 0, 0, 9))}, 1, 0.1) == ({}, {})
    assert opening(3) == {"one": True, "two": True}
    footings, controls = logs.committed(3, {"one": told({0: 4}), "two": told({0: 4})}, 1, 0.1)
    assert [footing.extent.oldest for footing in footings.values()] == [3, 3]
    assert len(controls) == 2
    logs.close()
    meta.close()
