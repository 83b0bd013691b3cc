"""Linear Road on a cut of a given data set: whatever crashes, is scaled or taken over in the middle, the answers are
those that others expect of it."""

from __future__ import annotations

import importlib
import itertools
import lzma
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from replica_harness import KilledError, Pair, pair

import holdfast as hf
from commits import around_commits
from harness import Commits, Cut, Ran, run_in
from holdfast.engine.loop import Loop
from holdfast.epoch.record_change import record_of
from holdfast.graph.policies import DELTA
from holdfast.meta import Commands, Lease, MetaStore, opened_meta
from holdfast.plan.scale_command import ScaleCommand
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from strategies import long_cases

ROAD = Path(__file__).parents[2] / "examples" / "linear_road"
GIVEN = Path(__file__).parents[1] / "data" / "linear_road"
EPOCH_ROWS = 3_000
HELD_ROW = 12_000
SEEP = ("forwarder", "toll-calculator", "toll-assessment", "collector", "balance-account")


def lines(name: str) -> list[list[str]]:
    return [line.split(",") for line in lzma.open(GIVEN / f"{name}.csv.xz", "rt").read().splitlines()]


@pytest.fixture(scope="module")
def road() -> Iterator[Any]:
    sys.path.insert(0, str(ROAD))
    try:
        yield importlib.import_module("road")
    finally:
        sys.path.remove(str(ROAD))
        for module in ROAD.glob("*.py"):
            sys.modules.pop(module.stem, None)


def frame(name: str, schema: dict[str, Any]) -> pl.DataFrame:
    return pl.read_csv(lzma.open(GIVEN / f"{name}.csv.xz").read(), has_header=False, schema=schema)


class Reports(hf.source.Source):
    """The rows of the cut in epochs of a fixed size; those from `HELD_ROW` on not while they are `held`."""

    held = False
    bounded = True
    keeps = True

    def __init__(self, rows: pl.DataFrame) -> None:
        self.rows, self.schema = rows, rows.schema

    def start(self) -> Any:
        return {"row": 0}

    def take(self, position: Any, rows: int, pieces: int) -> hf.source.Take:
        start = position["row"]
        if start >= self.rows.height:
            return hf.source.Take((), position, True)
        if self.held and start >= HELD_ROW:
            return hf.source.Take((), position)
        stop = min(start + EPOCH_ROWS, self.rows.height)
        return hf.source.Take((hf.source.Slice(start, stop - start, {"stop": stop}),), {"row": stop})

    def read(self, piece: hf.source.Slice) -> Any:
        yield hf.source.Chunk(self.rows[piece.base : piece.where["stop"]], ordered=True)


@pytest.fixture
def build(road: Any) -> Callable[[hf.sink.Sink], hf.Pipeline]:
    rows, history = frame("data", road.INPUT), frame("history", road.HISTORY)

    def made(sink: hf.sink.Sink) -> hf.Pipeline:
        pipeline: hf.Pipeline = road.linear_road(Reports(rows), history, sink)
        return pipeline

    return made


def check(answers: pl.DataFrame) -> None:
    """With what is expected: tolls, balances and expenditures as they are, average speeds up to the next whole one."""
    expected = lines("expected")
    assert {row[0] for row in expected} == {"0", "1", "2", "3"}
    kind = {number: answers.filter(pl.col("type") == number) for number in range(4)}
    tolls = {(vid, at): (lav, toll) for vid, at, lav, toll in kind[0].select("vid", "time", "lav", "amount").rows()}
    assert len(tolls) == kind[0].height, "nothing comes twice"
    due = {(int(row[1]), int(row[2])): row for row in expected if row[0] == "0"}
    assert tolls.keys() == due.keys()
    for key, row in due.items():
        assert tolls[key][1] == int(row[5])
        assert abs(tolls[key][0] - float(row[6] or 0)) <= 1
    alerts = sorted(kind[1].select("time", "xway", "seg", "dir", "vid").rows())
    assert alerts == sorted(tuple(int(row[place]) for place in (1, 3, 4, 5, 6)) for row in expected if row[0] == "1")
    balances = sorted(kind[2].select("qid", "amount").rows())
    allowed = {int(row[4]): set(map(int, row[5].split("|"))) for row in expected if row[0] == "2"}
    assert [qid for qid, _ in balances] == sorted(allowed)
    assert all(amount in allowed[qid] for qid, amount in balances)
    spent = {int(row[3]): row[4].split("|")[0] for row in expected if row[0] == "3"}
    assert sorted(kind[3].select("qid", "amount").rows()) == sorted((qid, int(toll)) for qid, toll in spent.items())


def test_explain_shows_the_operators_of_the_paper(build: Callable[[hf.sink.Sink], hf.Pipeline]) -> None:
    told = str(hf.explain(build(hf.sink.collect())))
    for name in SEEP:
        assert f"  {name}: " in told
    places = {name: told.index(f"  {name}: ") for name in SEEP}
    assert places["forwarder"] < places["toll-calculator"] < places["toll-assessment"] < places["balance-account"]
    for name in ("toll-calculator", "toll-assessment"):
        assert f"── shuffle to {name}: " in told
        assert f"{name}: keyed process" in told


def test_a_crash_before_a_commit_and_other_partitions_after_it_change_no_answer(
    build: Callable[[hf.sink.Sink], hf.Pipeline], tmp_path: Path
) -> None:
    def crash(loop: Loop, ran: Ran) -> None:
        if ran.epoch == 4:
            raise KilledError

    pipeline = build(hf.sink.parquet(tmp_path / "out"))
    with pytest.raises(KilledError):
        run_in(tmp_path / "store", pipeline, Cut(tasks=2, scales=(1, 2)), follow=Commits(before=crash))
    again = run_in(tmp_path / "store", build(hf.sink.parquet(tmp_path / "out")), Cut(tasks=1, scales=(3, 2)))
    assert again.reports[0].epoch == 4
    check(hf.read_output(tmp_path / "out", "parquet"))


@pytest.mark.parametrize(
    ("policy", "loses"),
    [
        ("interval(1s)", True),
        pytest.param("interval(1s)", False, marks=pytest.mark.long),
        pytest.param("none", False, marks=pytest.mark.long),
        pytest.param("auto", True, marks=pytest.mark.long),
    ],
)
def test_a_crash_between_checkpoints_changes_no_answer(
    build: Callable[[hf.sink.Sink], hf.Pipeline], policy: str, loses: bool, tmp_path: Path
) -> None:
    """With the volatile tier, or without it: then recovery begins at the last checkpoint that was complete."""

    def crash(loop: Loop, ran: Ran) -> None:
        if ran.epoch == 6:
            raise KilledError

    seconds = itertools.count(0.0, 0.05).__next__
    with pytest.raises(KilledError):
        run_in(
            tmp_path / "store", build(hf.sink.parquet(tmp_path / "out")), Cut(tasks=2, partitions=2),
            follow=Commits(after=crash), checkpoint=policy, clock=seconds,
        )  # fmt: skip
    if loses:
        shutil.rmtree(tmp_path / "store" / "volatile", ignore_errors=True)
    again = run_in(
        tmp_path / "store", build(hf.sink.parquet(tmp_path / "out")), Cut(tasks=1, scales=(3, 2)), checkpoint=policy,
        clock=seconds,
    )  # fmt: skip
    assert again.reports, "there was something left to do"
    check(hf.read_output(tmp_path / "out", "parquet"))


def workers() -> Iterator[psutil.Process]:
    """The Python processes of Spark's tasks."""
    for process in psutil.Process().children(recursive=True):
        if "worker_daemon" in " ".join(process.cmdline()) and not process.children():
            yield process


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("executor", ["crew", "jobs"])
def test_killed_workers_and_other_partitions_change_no_answer(
    spark: SparkSession, road: Any, executor: Any, tmp_path: Path
) -> None:
    """On Spark: kill -9 of Python processes of its tasks, after plans and commits, and the calculator is scaled."""
    killed: list[int] = []

    def kill(meta: MetaStore, lease: Lease, epoch: int) -> None:
        if epoch == 2:
            Commands(meta).ask("linear-road", ScaleCommand("toll-calculator", 3, None, "").encode(), time.time())
        if epoch in (3, 6):
            victim = next(process for process in workers() if process.pid not in killed)
            victim.send_signal(signal.SIGKILL)
            killed.append(victim.pid)

    for name in ("road", "trips", "tolls", "accounts"):
        cloudpickle.register_pickle_by_value(sys.modules[name])
    rows = frame("data", road.INPUT)
    epochs = [rows[start : start + EPOCH_ROWS] for start in range(0, rows.height, EPOCH_ROWS)]
    pipeline = road.linear_road(
        hf.source.memory(epochs, epochs=True), frame("history", road.HISTORY), hf.sink.parquet(tmp_path / "out")
    )
    with pytest.MonkeyPatch.context() as patch:
        around_commits(after=kill, patch=patch.setattr)
        hf.run(
            pipeline, store=tmp_path / "store", spark=spark, partitions=2,
            executor=executor, until_idle=True, checkpoint=DELTA,
        )  # fmt: skip
    assert len(killed) >= 2
    with opened_meta(tmp_path / "store", None) as meta:
        last = meta.last_commit("linear-road")
    assert last is not None
    assert record_of(last).routing["toll-calculator"].partitions == 3
    check(hf.read_output(tmp_path / "out", "parquet"))


@pytest.mark.parametrize("scheme", [HOT_STANDBY, *long_cases(ACTIVE_REPLICATION)], ids=str)
def test_a_takeover_while_the_toll_calculator_is_scaled_changes_no_answer(
    build: Callable[[hf.sink.Sink], hf.Pipeline], scheme: Scheme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reports, "held", True)
    with pair(build, None, tmp_path, scheme, checkpoint=DELTA) as made:
        made.until(lambda: made.epoch() >= 2 and made.ready(), "two epochs and a secondary")
        primary = made.primary()
        Commands(primary.meta).ask("linear-road", ScaleCommand("toll-calculator", 3, None, "").encode(), time.time())
        made.until(lambda: made.epoch() >= HELD_ROW // EPOCH_ROWS, "all that is not held")
        primary.lose()
        monkeypatch.setattr(Reports, "held", False)
        _until_end(made, primary.name)
        last = primary.meta.last_commit("linear-road")
        assert last is not None
        assert record_of(last).routing["toll-calculator"].partitions == 3
    check(hf.read_output(tmp_path / "out", "parquet"))


def _until_end(made: Pair, lost: str) -> None:
    made.until_end()
    [other] = [host for name, host in made.hosts.items() if name != lost]
    assert other.committed, "the other host has gone on"
    assert not other.troubles
