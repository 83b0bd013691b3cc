"""Committed epochs are published in groups: whole, each once, whatever dies and whatever readers take away."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connect.sinks.file_sink import FileSink, published_epochs, read_output
from holdfast.engine.publication import Publication
from holdfast.engine.sink_calls import SinkCalls
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.transaction import Transaction
from holdfast.errors import CorruptRecordError, LeaseLostError, PipelineChangedError
from holdfast.graph.nodes import SinkNode
from holdfast.meta import Lease, MetaStore, OutputMeta
from holdfast.meta.sql_tables import outputs
from holdfast.sink import Owner
from power_loss import Steps, steps
from stored_texts import plan_epoch, plan_text, text

_NUMBERS = itertools.count()
SCHEMA = pl.Schema({"epoch_": pl.Int64, "n": pl.Int64})


class World:
    """A pipeline with one file sink, a clock that the test owns, and a reader."""

    def __init__(self, root: Path, meta: MetaStore, **rhythm: Any) -> None:
        self.out, self.taken = root / "out", root / "taken"
        self.taken.mkdir()
        self.meta = meta
        self.name = f"p{next(_NUMBERS)}"
        self.rhythm = rhythm
        self.now = 1_000.0
        self.epoch = 0
        self.attempt = 0
        self.start()

    def start(self) -> None:
        """As a driver does it."""
        self.sink = FileSink(self.out, "parquet", **self.rhythm)
        self.sink.attach(Owner(self.meta.identity(), self.name, "out"))
        self.publication = self.publishing(self.sink)
        self.lease = self.meta.acquire(self.name, "test", self.now, 1e9, dead_owner="test")
        self.epoch = self.meta.last_epoch(self.name)
        self.sink.check(self.epoch, {})
        self.publication.publish_all(self.lease)
        self.publication.sweep(self.epoch + 1, self.meta.right(self.lease))

    def publishing(self, *sinks: FileSink) -> Publication:
        nodes = [
            SinkNode(name="out" if number == 0 else f"out{number}", inputs=(), schema=SCHEMA, time=None, sink=sink)
            for number, sink in enumerate(sinks)
        ]
        return Publication(self.name, nodes, self.meta, lambda: self.now, SinkCalls(Deadlines()))

    def commit(self, rows: int, publication: Publication | None = None) -> None:
        publication = publication or self.publication
        epoch = self.epoch + 1
        self.attempt += 1
        receipts = {}
        if rows:
            frame = pl.DataFrame({"epoch_": [epoch] * rows, "n": list(range(rows))}, schema=SCHEMA)
            receipt = self.sink.prepare(frame, epoch=epoch, part="0", attempt=str(self.attempt))
            receipts["out"] = [dict(receipt)]
        plan_epoch(self.meta, self.lease, epoch, plan_text({}), self.now)
        with self.meta.fenced(self.lease, epoch) as connection:
            assert self.meta.write_commit(connection, self.lease, epoch, text({"receipts": receipts}), self.now)
            publication.gather(Transaction(self.meta, connection, self.lease, epoch), receipts)
        self.epoch = epoch
        publication.publish()

    def take(self) -> None:
        """A reader moves all it sees elsewhere."""
        for epoch in published_epochs(self.out):
            os.rename(self.out / f"epoch={epoch:012d}", self.taken / f"{len(os.listdir(self.taken)):06d}")

    def seen(self) -> list[list[tuple[int, int]]]:
        """The rows of each directory that readers were given."""
        places = [*sorted(self.taken.iterdir()), *sorted(self.out.glob("epoch=*"))]
        return [pl.read_parquet(list(place.glob("*.parquet")), hive_partitioning=False).rows() for place in places]


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaStore]:
    made = MetaStore(tmp_path_factory.mktemp("store"), sync=False)
    yield made
    made.close()


@pytest.fixture
def world(tmp_path: Path, meta: MetaStore) -> World:
    return World(tmp_path, meta, every="10s", bytes="1 MB")


@contextmanager
def fast_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        yield Path(place)


@contextmanager
def dying(dies_at: int | None) -> Iterator[Steps]:
    """A transaction counts as two steps: death comes before it, or after it."""
    real = MetaStore.writing
    with steps(dies_at) as counted, pytest.MonkeyPatch.context() as patch:

        @contextmanager
        def writing(meta: MetaStore, *given: Any, **more: Any) -> Iterator[sa.Connection]:
            counted.take()
            with real(meta, *given, **more) as connection:
                yield connection
            counted.take()

        patch.setattr(MetaStore, "writing", writing)
        yield counted


def test_publications_are_as_far_apart_as_asked_for(world: World) -> None:
    for _ in range(35):
        world.commit(2)
        world.now += 1.0
        world.publication.publish_due(world.lease)
    assert published_epochs(world.out) == [1, 10, 20, 30], "the first one at once: nothing waits longer than it must"
    world.publication.publish_all(world.lease)
    assert published_epochs(world.out) == [1, 10, 20, 30, 35]
    assert [len(rows) for rows in world.seen()] == [2, 18, 20, 20, 10]
    files = [len(list(place.iterdir())) for place in sorted(world.out.iterdir())]
    assert files == [1] * 5, "epochs that are published together are one file"


def test_what_waits_is_published_while_nothing_is_committed(world: World) -> None:
    world.commit(1)
    world.commit(1)
    world.commit(0)
    assert published_epochs(world.out) == [1]
    world.now += 9.9
    world.publication.publish_due(world.lease)
    assert published_epochs(world.out) == [1]
    world.now += 0.2
    world.publication.publish_due(world.lease)
    assert published_epochs(world.out) == [1, 2]


def test_what_has_gathered_enough_bytes_is_published_before_its_time(tmp_path: Path, meta: MetaStore) -> None:
    world = World(tmp_path, meta, every="1h", bytes=2_000)
    for _ in range(12):
        world.commit(1)
    [size] = {file.stat().st_size for file in world.out.glob("epoch=000000000001/*")}
    assert 2_000 / 4 < size < 2_000 / 2, "what the limit is chosen for"
    assert published_epochs(world.out) == [1, 4, 7, 10]


def test_each_epoch_on_its_own_where_that_is_asked_for(tmp_path: Path, meta: MetaStore) -> None:
    world = World(tmp_path, meta, every=0)
    for rows in (1, 0, 2, 3):
        world.commit(rows)
    assert published_epochs(world.out) == [1, 3, 4]


def test_nothing_is_kept_of_what_was_published(world: World) -> None:
    """Neither in the store nor beside the output, but for the last group, which the next commit tells of."""
    for _ in range(30):
        world.commit(3)
        world.now += 4.0
        world.publication.publish_due(world.lease)
    world.publication.publish_all(world.lease)
    with world.meta.reading() as connection:
        assert OutputMeta(world.name).groups(connection) == []
        assert OutputMeta(world.name).gathered(connection) == {}
    assert [file for file in world.sink.staging.root.rglob("*") if file.is_file()] == []


def test_a_reader_that_moves_the_last_epoch_away_does_not_stop_the_next_start(world: World) -> None:
    for _ in range(3):
        world.commit(2)
        world.now += 11.0
        world.take()
        world.start()
    assert world.seen() == [[(1, 0), (1, 1)], [(2, 0), (2, 1)], [(3, 0), (3, 1)]]


ACTION = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 3), st.none() | st.integers(0, 60)),
    st.tuples(st.just("wait"), st.sampled_from([1, 6, 30]), st.none() | st.integers(0, 40)),
    st.tuples(st.just("stop"), st.just(0), st.none() | st.integers(0, 60)),
    st.tuples(st.just("take"), st.just(0), st.none()),
)


@settings(max_examples=400 if os.environ.get("HOLDFAST_FUZZ") else 40)
@given(actions=st.lists(ACTION, min_size=3, max_size=14), at_once=st.booleans())
def test_whole_epochs_are_seen_once_whatever_dies_and_is_taken_away(
    meta: MetaStore, actions: list[tuple[str, int, int | None]], at_once: bool
) -> None:
    with fast_directory() as place:
        world = World(place, meta, every=0 if at_once else "10s")
        expected: dict[int, int] = {}
        for kind, amount, dies_at in actions:
            with dying(dies_at) as counted:
                if kind == "commit":
                    epoch = world.epoch + 1
                    expected[epoch] = amount
                    world.commit(amount)
                elif kind == "wait":
                    world.now += amount
                    world.publication.publish_due(world.lease)
                elif kind == "take":
                    world.take()
                else:
                    world.publication.publish_all(world.lease)
                    world.start()
            if counted.dead:
                expected = {
                    epoch: rows for epoch, rows in expected.items() if epoch <= world.meta.last_epoch(world.name)
                }
                world.start()
        world.publication.publish_all(world.lease)
        found = world.seen()
        rows = sorted(row for directory in found for row in directory)
        assert rows == [(epoch, n) for epoch in sorted(expected) for n in range(expected[epoch])]
        of_epochs = [sorted({epoch for epoch, _ in directory}) for directory in found]
        assert sum(map(len, of_epochs)) == len({epoch for epoch, _ in rows}), "no epoch is in two directories"
        world.publication.sweep(world.epoch + 2, world.meta.right(world.lease))
        assert [file for file in world.sink.staging.root.rglob("*") if file.is_file()] == []


@settings(max_examples=20)
@given(turns=st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.sampled_from([1, 12])), min_size=2, max_size=12))
def test_two_hosts_that_commit_in_turns_publish_each_epoch_once(
    meta: MetaStore, turns: list[tuple[bool, int, int]]
) -> None:
    with fast_directory() as place:
        world = World(place, meta, every="10s")
        hosts = [world.publication, world.publishing(world.sink)]
        for first, rows, seconds in turns:
            world.commit(rows, hosts[not first])
            hosts[first].publish()
            world.now += seconds
            hosts[0].publish_due(world.lease)
            world.take()
        world.publication.publish_all(world.lease)
        hosts[1].publish()
        expected = [(epoch, n) for epoch, (_, rows, _) in enumerate(turns, start=1) for n in range(rows)]
        assert [row for directory in world.seen() for row in directory] == expected


def test_output_that_is_damaged_in_the_store_is_told_and_not_published(world: World) -> None:
    world.commit(1)
    world.commit(2)
    with world.meta.writing() as connection:
        connection.execute(sa.update(outputs).where(outputs.c.epoch == 2).values(receipts="0" * 16 + " []"))
    world.now += 60
    with pytest.raises(CorruptRecordError, match="the output for sink 'out' of epoch 2 of pipeline"):
        world.publication.publish_due(world.lease)
    with world.meta.writing() as connection:
        connection.execute(sa.delete(outputs).where(outputs.c.pipeline == world.name))


def test_who_has_lost_the_lease_decides_nothing(world: World) -> None:
    world.commit(1)
    world.commit(1)
    stale = Lease(world.name, "test", world.lease.token)
    world.lease = world.meta.acquire(world.name, "successor", world.now, 1e9, dead_owner="test")
    world.now += 60
    for act in (world.publication.publish_due, world.publication.publish_all):
        with pytest.raises(LeaseLostError):
            act(stale)
    assert published_epochs(world.out) == [1]


def test_epochs_that_wait_for_a_sink_that_is_gone_or_writes_elsewhere_are_not_forgotten(world: World) -> None:
    world.commit(1)
    world.commit(2)
    elsewhere = FileSink(world.out.with_name("elsewhere"), "parquet")
    elsewhere.attach(Owner(world.meta.identity(), world.name, "out"))
    for changed, why in ((world.publishing(), "is gone"), (world.publishing(elsewhere), "writes elsewhere")):
        with pytest.raises(
            PipelineChangedError, match=f"operator 'out', epoch 2: .*committed but not published.*{why}"
        ):
            changed.publish_all(world.lease)
    world.start()
    assert read_output(world.out, "parquet").height == 3
