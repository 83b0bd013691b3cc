"""P-streams in segments: what a reader needs stays, and what nobody needs goes, while others append."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from appending import SCHEMA, batch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.meta import MetaStore, StreamMeta
from holdfast.pstream import Lineage, StreamDescription, StreamUnit, UnitWriter
from holdfast.pstream import pstream as module
from holdfast.pstream.appender import open_appender
from holdfast.pstream.pstream import PStream, new_entry
from holdfast.store import Private, SegmentWriter, segment_of
from strategies import examples

MINE = Private("the only writer")
NAMES = itertools.count()
EPOCHS = 3


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_EPOCHS", EPOCHS)


class Fragment:
    """Writes a stream epoch by epoch, with workers that are ahead of its commits."""

    def __init__(self, meta: MetaStore, root: Path) -> None:
        self.meta = meta
        self.log = PStream(meta, root, f"p.s{next(NAMES)}", sync=False, clock=lambda: 1.0)
        self.log.declare(StreamDescription({"v": "Int64"}))
        self.writer = UnitWriter(self.log.store)
        self.workers = [SegmentWriter(self.log.store.root, False, EPOCHS) for _ in range(2)]
        self.epoch = 0
        self.ahead: dict[int, list[StreamUnit]] = {}

    def run(self, epoch: int, *having: int) -> None:
        """The workers that have rows for an epoch write them."""
        frame = pl.DataFrame({"v": [epoch] * 2})
        units = [self.writer.write("never", frame, self.workers[worker], epoch) for worker in having]
        self.ahead[epoch] = [StreamUnit.of(unit) for unit in units]

    def commit(self, *, ended: bool = False) -> None:
        self.epoch += 1
        units = self.ahead.pop(self.epoch)
        if units or ended:
            with self.meta.writing() as connection:
                self.log.write(connection, [new_entry(units, after=None, ended=ended, lineage=Lineage())])

    def release(self, reader: str, number: int) -> None:
        with self.meta.writing() as connection:
            self.log.checkpoint(connection, reader, number, 0, 1)

    def check(self) -> None:
        """All entries that are left can be read."""
        for entry in self.log.read(0, 1 << 30):
            for frame in self.log.load([entry]):
                assert frame["v"].n_unique() == 1

    def files(self) -> set[str]:
        return set(self.log.store.names())


Action = st.one_of(
    st.tuples(st.just("epoch"), st.sampled_from([(), (0,), (1,), (0, 1)])),
    st.tuples(st.just("again"), st.integers(0, 1)),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("trim"), st.integers(0, 1)),
    st.tuples(st.just("other"), st.integers(0, 1)),
)


@examples(40)
@given(actions=st.lists(Action, max_size=60))
def test_a_trim_takes_nothing_that_a_reader_needs_or_a_worker_appends_to(
    actions: list[tuple[str, Any]], meta: MetaStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = Fragment(meta, tmp_path_factory.mktemp("stream"))
    other = PStream(meta, made.log.store.root.parents[1], made.log.name, sync=False, clock=lambda: 1.0)
    for reader in ("one", "two"):
        made.log.subscribe(reader)
    made.run(1, 0, 1)
    for action, number in actions:
        match action:
            case "epoch":  # its workers are at the next one when an epoch is committed
                made.run(made.epoch + 2, *number)
                made.commit()
            case "again":  # a worker was lost, and what all have written since the commit
                made.workers[number] = SegmentWriter(made.log.store.root, False, EPOCHS)
                made.run(made.epoch + 1, 0, 1)
            case "release":
                for reader in ("one", "two"):
                    made.release(reader, max(0, made.log.state().number - number))
            case "trim":
                made.log.trim()
            case "other":  # who reads the stream trims it, too
                other.trim()
        made.check()
    made.commit()
    made.check()


def test_what_was_released_goes_with_its_segment(meta: MetaStore, tmp_path: Path) -> None:
    made = Fragment(meta, tmp_path)
    made.log.subscribe("r")
    most = 0
    for epoch in range(1, 100):
        made.run(epoch, 0, 1)
        made.commit()
        made.release("r", made.log.state().number)
        made.log.trim()
        most = max(most, len(made.files()))
    assert most <= 2 * 3, "of each worker the open segment, and two that may be as far as a reader knows"
    made.run(100, 0, 1)
    made.commit(ended=True)
    made.release("r", made.log.state().number)
    made.log.trim()
    assert made.files() == set(), "nobody appends to a stream that has ended"


def test_the_next_start_sweeps_segments_of_which_no_entry_is_left(meta: MetaStore, tmp_path: Path) -> None:
    made = Fragment(meta, tmp_path)
    made.log.subscribe("r")
    for epoch in range(1, 8):
        made.run(epoch, 0, 1)
        made.commit()
    made.run(8, 0, 1)
    made.release("r", 6)
    made.log.trim()
    made.log.sweep(MINE)
    made.check()
    left = {segment_of(name) for entry in made.log.read(0, 100) for name in entry.files}
    assert made.files() == left


@pytest.fixture
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaStore]:
    opened = MetaStore(tmp_path_factory.mktemp("meta"), sync=False)
    yield opened
    opened.close()


def test_small_batches_of_a_receiver_share_segments_and_large_ones_have_files(meta: MetaStore, tmp_path: Path) -> None:
    appender = open_appender(meta, tmp_path, "in", SCHEMA, event_time=None, lateness=0, budget=None, sync=False)
    acks = [appender.append(batch(number)) for number in range(10)]
    noise = pl.Series("v", range(200_000)).hash(7).reinterpret(signed=True)
    acks.append(appender.append(pl.DataFrame({"ts": noise.reverse().alias("ts"), "v": noise})))
    appender.close()
    files = [name for entry in appender.stream.read(0, 1 << 30) for name in entry.files]
    assert len({segment_of(name) for name in files[:10]}) == 1
    assert segment_of(files[10]) is None
    rows = [frame for entry in appender.stream.read(0, 1 << 30) for frame in appender.stream.load([entry])]
    assert sum(frame.height for frame in rows) == sum(ack.rows for ack in acks)
    assert StreamMeta(meta).entries("in", 0)[-1].number == 11


def test_a_worker_that_had_nothing_for_a_while_appends_to_its_segment(meta: MetaStore, tmp_path: Path) -> None:
    made = Fragment(meta, tmp_path)
    made.log.subscribe("r")
    for epoch, having in enumerate(((0,), (1,), (0,)), start=1):
        made.run(epoch, *having)
    made.commit()
    made.commit()
    made.release("r", 2)
    made.log.trim()
    made.commit()
    made.check()
    assert len(made.log.read(0, 10)) == 1
