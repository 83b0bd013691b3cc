"""Replicas of a fragment: all schemes, takeovers, the wheel, gaps, and outputs that differ. Two hosts in one process;
`test_hosts.py` has processes that are killed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from replica_harness import PATIENCE, Build, KilledError, Pair, TestHost, pair

import holdfast as hf
from commits import around_commits
from holdfast.connect.sinks.file_sink import published_epochs
from holdfast.engine import committer
from holdfast.engine.roles import Role
from holdfast.engine.start import Start
from holdfast.epoch.digest import difference
from holdfast.epoch.record_change import record_of
from holdfast.errors import LeaseLostError
from holdfast.graph.policies import DELTA
from holdfast.meta import Lease, MetaStore
from holdfast.replica.scheme_change import turn_to
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.spark.crew import Crew
from holdfast.spark.executor_switch import ExecutorSwitch
from holdfast_lab.chaos.database_server import DatabaseServer
from postgres import fresh_url
from strategies import long_cases

EPOCHS, HELD, ROWS = 36, 8, 40


class Paced(hf.source.Source):
    """Gives an epoch of rows at a time, and not before it is due; the last ones not while they are `held`."""

    held = False
    every = 0.08

    bounded = True
    keeps = True
    schema = pl.Schema({"ts": pl.Int64, "key": pl.Int64, "value": pl.Float64})

    def __init__(self, epochs: int = EPOCHS) -> None:
        self.epochs, self.began = epochs, time.time()

    def start(self) -> Any:
        return {"epoch": 0}

    def take(self, position: Any, rows: int, pieces: int) -> hf.source.Take:
        epoch = position["epoch"]
        if epoch >= self.epochs:
            return hf.source.Take((), position, True)
        held = self.held and epoch >= self.epochs - HELD
        if held or time.time() < self.began + epoch * self.every:
            return hf.source.Take((), position)
        return hf.source.Take(
            (hf.source.Slice(epoch * ROWS, ROWS, {"epoch": epoch}),), {"epoch": epoch + 1}, epoch + 1 == self.epochs
        )

    def read(self, piece: hf.source.Slice) -> Any:
        first = piece.where["epoch"] * ROWS
        numbers = range(first, first + ROWS)
        frame = pl.DataFrame(
            {"ts": [100 * n for n in numbers], "key": [n % 7 for n in numbers], "value": [n / 8 for n in numbers]}
        )
        yield hf.source.Chunk(frame, ordered=True)


def windows(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("windows")
    rows = pipeline.source("events", Paced(), event_time="ts", time_unit="ms").key_by("key")
    rows.window(hf.window.sliding("8s", "2s"), name="totals").agg(n=hf.count(), total=hf.sum("value")).sink("out", sink)
    return pipeline


def cut(sink: hf.sink.Sink) -> hf.Pipeline:
    """Two fragments: what the first one writes to a p-stream the second one reads."""
    pipeline = hf.Pipeline("cut")
    rows = pipeline.source("events", Paced(), event_time="ts", time_unit="ms").filter(pl.col("key") != 3)
    rows = rows.persist("kept", push_up=False).key_by("key")
    rows.window(hf.window.tumbling("4s"), name="totals").agg(n=hf.count(), total=hf.sum("value")).sink("out", sink)
    return pipeline


def merging(sink: hf.sink.Sink) -> hf.Pipeline:
    """Rows of two sources with the same times: what is first and last in a window depends on how they are merged."""
    pipeline = hf.Pipeline("merging")
    left, right = (pipeline.source(name, Paced(), event_time="ts", time_unit="ms") for name in ("left", "right"))
    rows = left.union(right.with_columns(value=-pl.col("value") - 1)).key_by("key")
    rows.window(hf.window.tumbling("4s"), name="totals").agg(
        n=hf.count(), total=hf.sum("value"), first=hf.first("value"), last=hf.last("value")
    ).sink("out", sink)
    return pipeline


@pytest.fixture(scope="module")
def expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[Build, list[Any]]:
    return {build: faultless(build, spark, tmp_path_factory.mktemp("expected")) for build in (windows, cut)}


def faultless(build: Build, spark: SparkSession, place: Path) -> list[Any]:
    """What comes out of a run in one process, without waiting for epochs to be due."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Paced, "every", 0.0)
        hf.run(build(hf.sink.parquet(place / "out")), spark=spark, store=place / "store", durable=False)
    return rows_of(place)


@pytest.fixture
def held(expected: dict[Build, list[Any]]) -> Iterator[None]:
    """The input does not end before a takeover, however fast the replicas are."""
    Paced.held = True
    yield
    Paced.held = False


def rows_of(place: Path) -> list[Any]:
    return sorted(hf.read_output(place / "out", "parquet").rows())


def awaited(met: Callable[[], bool], seconds: float = 10.0) -> None:
    """Until it is so, or so long that the other replica cannot be meant to come."""
    until = time.monotonic() + seconds
    while not met() and time.monotonic() < until:
        time.sleep(0.005)


def epochs_read(place: Path) -> list[int]:
    return published_epochs(place / "out")


def after_takeover(made: Pair, *, kill_at: int) -> None:
    """Kill the primary when it is that far and its secondary is ready; wait for the end."""
    made.until(lambda: made.ready() and made.epoch() >= kill_at, "a ready secondary")
    first, second = made.primary(), made.secondary()
    token = made.look().seats.primary
    assert token is not None
    first.lose()
    made.until(lambda: bool(second.takeovers), "a takeover by the secondary")
    Paced.held = False
    made.until_end()
    late = first.member.agreement.lease(made.fragments[-1], token.token, shared=False)
    with pytest.raises(LeaseLostError), first.meta.writing() as connection:
        first.meta.fence(connection, late)


OFTEN = hf.checkpoint.interval("500ms")
CASES = [
    (ACTIVE_REPLICATION, OFTEN),
    (ACTIVE_STANDBY, DELTA),
    (HOT_STANDBY, OFTEN),
    (COLD_STANDBY, OFTEN),
]
MORE = [
    (ACTIVE_REPLICATION, DELTA),
    (ACTIVE_STANDBY, OFTEN),
    (HOT_STANDBY, DELTA),
    (COLD_STANDBY, DELTA),
]


@pytest.mark.parametrize(
    ("scheme", "policy"),
    CASES + long_cases(*MORE),
    ids=lambda value: getattr(value, "value", str(value)),
)
@pytest.mark.usefixtures("held")
def test_the_output_is_the_same_after_a_takeover(
    spark: SparkSession, tmp_path: Path, expected: dict[Build, list[Any]], scheme: Scheme, policy: Any
) -> None:
    with pair(windows, spark, tmp_path, scheme, checkpoint=policy) as made:
        after_takeover(made, kill_at=8)
    assert rows_of(tmp_path) == expected[windows]


@pytest.mark.usefixtures("held")
def test_a_takeover_by_the_seats_of_a_database(
    spark: SparkSession, tmp_path: Path, postgresql: DatabaseServer, expected: dict[Build, list[Any]]
) -> None:
    """As hosts on several machines have it."""
    meta = fresh_url(postgresql)
    with pair(windows, spark, tmp_path, ACTIVE_REPLICATION, checkpoint=DELTA, meta=meta) as made:
        after_takeover(made, kill_at=8)
    assert rows_of(tmp_path) == expected[windows]
    assert not list((tmp_path / "store").glob("meta.db")), "nothing is in the file"


@pytest.mark.usefixtures("held")
def test_a_deployed_host_takes_over(spark: SparkSession, tmp_path: Path, expected: dict[Build, list[Any]]) -> None:
    with pair(windows, spark, tmp_path, DEPLOYED, checkpoint=DELTA) as made:
        made.until(made.ready)
        assert made.secondary().replicas["windows"].run is None, "nothing is loaded"
        after_takeover(made, kill_at=5)
    assert rows_of(tmp_path) == expected[windows]


@pytest.mark.usefixtures("held")
def test_a_hot_standby_takes_over_with_the_crew_that_stood_before(
    spark: SparkSession, tmp_path: Path, expected: dict[Build, list[Any]]
) -> None:
    with pair(windows, spark, tmp_path, HOT_STANDBY, checkpoint=DELTA, executor="crew") as made:
        made.until(made.ready)
        second = made.secondary()
        made.until(lambda: bool(workers_of(second)), "workers of the standby")
        assert second.committed == [], "it has run no epoch"
        turn_to(made.agreement, "windows", COLD_STANDBY)
        made.until(lambda: made.ready() and workers_of(second) == [], "a standby without a crew")
        turn_to(made.agreement, "windows", HOT_STANDBY)
        made.until(lambda: made.ready() and bool(workers_of(second)), "workers again")
        again = workers_of(second)
        made.primary().lose()
        made.until(lambda: bool(second.committed), "a takeover by the secondary")
        assert workers_of(second) == again
        Paced.held = False
        made.until_end()
    assert rows_of(tmp_path) == expected[windows]


def workers_of(host: TestHost) -> list[int]:
    run = host.replicas["windows"].run
    if run is None:
        return []
    assert isinstance(run.loop.executor, ExecutorSwitch)
    assert isinstance(run.loop.executor.current, Crew)
    return run.loop.executor.current.workers


SHARED = [ACTIVE_REPLICATION]


@pytest.mark.parametrize("scheme", [*SHARED, *long_cases(ACTIVE_STANDBY)], ids=lambda scheme: scheme.name)
@pytest.mark.usefixtures("held")
def test_fragments_with_a_p_stream_between_them(
    spark: SparkSession, tmp_path: Path, expected: dict[Build, list[Any]], scheme: Scheme
) -> None:
    with pair(cut, spark, tmp_path, scheme, checkpoint=DELTA) as made:
        after_takeover(made, kill_at=6)
        missing = [trouble for host in made.hosts.values() for trouble in host.troubles if "missing" in trouble]
        assert missing == [], "who is later finds what it reads, too"
    assert rows_of(tmp_path) == expected[cut]


@pytest.mark.usefixtures("held")
def test_replicas_merge_several_inputs_alike(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is first with an epoch, the other one compares its own rows with what was committed."""
    compared: list[str | None] = []
    came: set[tuple[int, bool]] = set()

    def meet(meta: MetaStore, lease: Lease, epoch: int) -> None:
        """Once the last rows come, neither commits before the other has the epoch: both end together."""
        came.add((epoch, lease.shared))
        awaited(lambda: Paced.held or (epoch, not lease.shared) in came)

    around_commits(before=meet, patch=monkeypatch.setattr)

    def counted(winner: Any, mine: Any) -> str | None:
        compared.append(difference(winner, mine))
        return compared[-1]

    monkeypatch.setattr(committer, "difference", counted)
    with pair(merging, spark, tmp_path, ACTIVE_REPLICATION, checkpoint=DELTA) as made:
        made.until(made.ready, "a ready secondary")
        Paced.held = False
        made.until_end()
        assert made.look().notes.diverged is None
    assert len(compared) >= HELD // 2, "both ran what was held, but for what the slower one had before it at the end"
    assert set(compared) == {None}
    plain = faultless(merging, spark, tmp_path / "plain")
    assert [row[:5] for row in rows_of(tmp_path)] == [row[:5] for row in plain]


@pytest.mark.usefixtures("held")
def test_both_replicas_publish_and_nothing_comes_twice(
    spark: SparkSession, tmp_path: Path, expected: dict[Build, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The secondary waits for the primary in every second epoch, the primary in the others: each is first at times."""

    def late(meta: MetaStore, lease: Lease, epoch: int) -> None:
        if lease.shared == (epoch % 2 == 0):
            awaited(lambda: Paced.held or meta.last_epoch(lease.pipeline) >= epoch)

    around_commits(before=late, patch=monkeypatch.setattr)
    with pair(windows, spark, tmp_path, ACTIVE_REPLICATION, checkpoint=DELTA) as made:
        made.until(made.ready, "a ready secondary")
        Paced.held = False
        made.until_end()
        by = {name: set(host.committed) for name, host in made.hosts.items()}
    assert all(by.values()), "each was first at times"
    assert by["one"] | by["two"] == set(range(1, EPOCHS + 1))
    assert not by["one"] & by["two"], "who was first has committed"
    assert rows_of(tmp_path) == expected[windows]
    left = [path for path in (tmp_path / ".out.staging").rglob("*") if path.is_file()]
    left.remove(tmp_path / ".out.staging" / "owner.json")
    assert not left, "what was prepared in vain is removed"


def test_a_secondary_is_not_ready_before_it_has_caught_up(spark: SparkSession, tmp_path: Path) -> None:
    """No checkpoint was made, so it begins with the first epoch."""
    with pair(
        windows, spark, tmp_path, ACTIVE_STANDBY, late=8, checkpoint=hf.checkpoint.interval("60s"), retain=100
    ) as made:
        made.until(lambda: made.ready() or made.look().ended, "a ready secondary")
        assert not made.look().ended
        run = made.secondary().replicas["windows"].run
        assert run is not None
        assert run.committed >= 8, "it has run all that was committed before it came"
        made.until_end()


@pytest.mark.usefixtures("held")
def test_the_wheel_turns_while_epochs_run(
    spark: SparkSession, tmp_path: Path, expected: dict[Build, list[Any]]
) -> None:
    way = [*list(wheel.SCHEMES)[:5], *list(wheel.SCHEMES)[3::-1]]
    with pair(windows, spark, tmp_path, way[0], checkpoint=DELTA) as made:
        for scheme in way:
            turn_to(made.agreement, "windows", scheme)
            made.until(lambda: made.ready() or made.look().ended, scheme.name)
        assert not made.look().ended, "the wheel was turned while it ran"
        Paced.held = False
        made.until_end()
    assert rows_of(tmp_path) == expected[windows]


def test_gap_recovery_leaves_out_and_says_so(
    spark: SparkSession, tmp_path: Path, expected: dict[Build, list[Any]]
) -> None:
    options = {"checkpoint": hf.checkpoint.interval("60s"), "precise": False, "retain": 100}
    with pair(windows, spark, tmp_path, COLD_STANDBY, **options) as made:
        made.until(lambda: made.ready() and made.epoch() >= 8)
        made.primary().lose()
        made.until_end()
        commits = made.hosts["two"].meta.commits("windows")
        gaps = {commit.epoch: record_of(commit).gap for commit in commits}
        epochs = [commit.epoch for commit in commits]
    assert epochs == sorted(set(epochs), reverse=True), "no epoch is committed twice"
    assert any(gap is not None for gap in gaps.values()), "the gap is on record"
    found, whole = rows_of(tmp_path), expected[windows]
    assert {row[:2] for row in found} <= {row[:2] for row in whole}
    assert len(found) == len({row[:2] for row in found}), "nothing comes twice"
    assert sum(row[2] for row in found) < sum(row[2] for row in whole), "what was in the lost state is left out"


def test_a_secondary_that_has_run_what_was_left_out_goes_on_with_what_was_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joins after the plan of the epoch that the primary died in, and before the next one leaves that out."""
    leave_gap, joined, dead_at = Start._leave_gap, threading.Event(), 8

    def dying(meta: MetaStore, lease: Lease, epoch: int) -> None:
        if epoch == dead_at:
            made.hosts["one"].kill()
            raise KilledError

    def late(self: Start, *given: Any) -> None:
        joined.wait(PATIENCE)
        leave_gap(self, *given)

    with pair(windows, spark, tmp_path, DEPLOYED, precise=False, checkpoint=DELTA) as made:
        around_commits(before=dying, patch=monkeypatch.setattr)
        monkeypatch.setattr(Start, "_leave_gap", late)
        two = made.hosts["two"]
        made.until(lambda: two.role("windows") is Role.LEAD, "a new primary")
        turn_to(made.agreement, "windows", ACTIVE_STANDBY)
        three = made.hosts["three"] = replace(two, name="three", replicas={}, left=[], troubles=[], _authorities=[])
        three.start()
        made.until(lambda: made.epoch() == dead_at - 1 and made.ready(), "a secondary that has run the epoch")
        joined.set()
        made.until(lambda: made.epoch() >= dead_at + 3 and made.ready(), "a secondary after the gap")
        assert three.replicas["windows"].run is not None
        assert three.replicas["windows"].run.committed > dead_at
        commits = {commit.epoch: record_of(commit) for commit in two.meta.commits("windows")}
        assert made.look().notes.diverged is None
        assert (three.left, three.troubles) == ([], [])
        made.until_end()
    assert commits[max(commits)].gap is None
    found = rows_of(tmp_path)
    assert len(found) == len({row[:2] for row in found}), "nothing comes twice"


def odd(sink: hf.sink.Sink) -> hf.Pipeline:
    def anything(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(value=pl.Series([random.random() for _ in range(rows.height)], dtype=pl.Float64))

    pipeline = hf.Pipeline("odd")
    rows = pipeline.source("events", Paced(), event_time="ts", time_unit="ms").map_batches(anything)
    rows.key_by("key").window(hf.window.tumbling("2s"), name="totals").agg(total=hf.sum("value")).sink("out", sink)
    return pipeline


@pytest.mark.parametrize(
    "scheme",
    [ACTIVE_STANDBY, *long_cases(ACTIVE_REPLICATION)],
    ids=lambda scheme: scheme.name,
)
def test_a_secondary_whose_output_differs_is_stopped_and_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    """With active replication it is the first to commit, and the primary finds the difference."""

    def late(meta: MetaStore, lease: Lease, epoch: int) -> None:
        time.sleep(0.0 if lease.shared or scheme is not ACTIVE_REPLICATION else 0.4)

    around_commits(before=late, patch=monkeypatch.setattr)
    with pair(odd, spark, tmp_path, scheme, checkpoint=DELTA) as made:
        second = made.secondary()
        made.until(lambda: made.look().notes.diverged is not None, "a difference was found")
        divergence = made.look().notes.diverged
        assert divergence is not None
        assert divergence.host == second.name
        assert "'out'" in divergence.what
        assert made.look().seats.secondary is None
        made.until(lambda: bool(second.left), "its process ends")
        made.until_end()
        assert bool(second.committed) == (scheme is ACTIVE_REPLICATION)
    assert epochs_read(tmp_path), "the pipeline went on"
