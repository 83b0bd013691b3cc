"""The eventual checkpoint is what a walk back through the log, record by record, would find: damaged or not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptPUnitError
from holdfast.hidden_columns import KIND, POSITION, TAU
from holdfast.pstream.punit import write_punit
from holdfast.state.eventual_checkpoint import LoggedBatch, load_eventual
from holdfast.state.footprints import FootprintKind as Kind
from holdfast.state.footprints import read_batch, sealed
from holdfast.state.position import key_positions
from holdfast.store import DirectoryStore, Private
from strategies import examples

PANE = "__hf_pane"
_KEYS: dict[pl.DataType, list[Any]] = {
    pl.Int64(): [None, 0, 1, -(2**63), 2**63 - 1, 7],
    pl.Float64(): [None, float("nan"), 0.0, 1.5, float("inf"), -3.0],
    pl.String(): [None, "", "a", "b", "a longer one than fits", "ab"],
    pl.Datetime("us"): [None, *(datetime(2024, 1, day) for day in range(1, 6))],
}
Window = tuple[str, int | None]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of operator wrote the log."""

    dtype: pl.DataType
    panes: bool
    grouped: bool
    collide: bool
    """All positions are the same, as if the hash were no good."""

    @property
    def ids(self) -> list[str]:
        return ["key", PANE] if self.panes else ["key"]


@dataclass(frozen=True, slots=True)
class Written:
    """A log, oldest batch first, and what was true when it ended."""

    shape: Shape
    store: DirectoryStore
    batches: list[LoggedBatch]
    rows: list[list[Row]]
    open: set[Window]
    closed: int | None

    def newest_first(self, taken: list[LoggedBatch]) -> Iterator[LoggedBatch]:
        for batch in reversed(self.batches):
            taken.append(batch)
            yield batch


_SHAPES = st.builds(Shape, st.sampled_from(list(_KEYS)), st.booleans(), st.booleans(), st.sampled_from([0, 0, 0, 1]))
_SEEDS = st.integers(0, 2**32)


def _window(row: Row) -> Window:
    return repr(row["key"]), row.get(PANE)


def _write(store: DirectoryStore, shape: Shape, rng: random.Random) -> Written:
    """An operator lives through some epochs: windows open, are checked on, close, or expire with the watermark."""
    keys = rng.sample(_KEYS[shape.dtype], rng.randint(1, 6))
    closed = -1
    now: set[Window] = set()
    by_name = {repr(key): key for key in keys}
    rows: list[list[Row]] = []
    for epoch in range(rng.randint(1, 8)):
        closed += shape.panes and rng.random() < 0.4
        now = {window for window in now if window[1] is None or window[1] > closed}
        every = {
            (name, pane) for name in by_name for pane in (range(closed + 1, closed + 4) if shape.panes else [None])
        }
        batch: list[Row] = []
        for window in sorted(every, key=repr):
            if rng.random() < 0.5:
                continue
            kind = rng.choices([Kind.CHECK, Kind.CLOSED], [4, 1])[0] if window in now else Kind.OPEN
            (now.discard if kind == Kind.CLOSED else now.add)(window)
            for part in range(rng.randint(1, 3) if shape.grouped and kind != Kind.CLOSED else 1):
                pane = {PANE: window[1]} if shape.panes else {}
                value = [{"at": epoch * 10 + part, "note": "n" * part}]
                batch.append({"key": by_name[window[0]], **pane, "value": value, KIND: int(kind)})
        rng.shuffle(batch)
        rows.append(batch)
    batches = [_write_batch(store, shape, epoch, batch) for epoch, batch in enumerate(rows)]
    return Written(shape, store, batches, rows, now, closed if shape.panes else None)


def _write_batch(store: DirectoryStore, shape: Shape, epoch: int, rows: list[Row]) -> LoggedBatch:
    pane = {PANE: pl.Int64()} if shape.panes else {}
    value = pl.List(pl.Struct({"at": pl.Int64, "note": pl.String}))
    frame = pl.DataFrame(rows, schema={"key": shape.dtype, **pane, "value": value, KIND: pl.UInt8}, orient="row")
    positions = pl.Series(POSITION, key_positions([frame["key"]]), dtype=pl.UInt64)
    if shape.collide:
        positions = positions * 0
    records = sealed(frame.select(positions, pl.exclude(KIND)), frame[KIND].to_numpy(), epoch)
    closings = sum(row[KIND] == Kind.CLOSED for row in rows)
    return LoggedBatch(epoch, write_punit(store, f"log/{epoch}", records), closings)


Found = dict[Window, tuple[int, list[Row]]]


def _walk_back(log: Written, rows: list[list[Row]]) -> tuple[Found, int]:
    """As the paper has it: the last footprints of the open windows, and how many batches were looked at."""
    seen: Found = {}
    shut: set[Window] = set()
    for epoch in reversed(range(len(rows))):
        if len(seen) >= len(log.open):
            return seen, len(rows) - 1 - epoch
        for row in rows[epoch]:
            window = _window(row)
            if log.closed is not None and row[PANE] <= log.closed:
                continue
            if window in shut or (window in seen and seen[window][0] != epoch):
                continue
            if row[KIND] == Kind.CLOSED:
                shut.add(window)
            else:
                seen.setdefault(window, (epoch, []))[1].append(row)
    return seen, len(rows)


def _as_found(rows: pl.DataFrame) -> Found:
    found: Found = {}
    for row in rows.iter_rows(named=True):
        found.setdefault(_window(row), (row[TAU], []))[1].append(row)
    return found


def _same(one: Found, two: Found) -> bool:
    def plain(found: Found) -> dict[Window, tuple[int, list[str]]]:
        return {window: (tau, sorted(repr(row["value"]) for row in rows)) for window, (tau, rows) in found.items()}

    return plain(one) == plain(two)


def _load(log: Written, chunk_records: int, taken: list[LoggedBatch] | None = None) -> Any:
    shape = log.shape
    pane = PANE if shape.panes else None
    batches = log.newest_first([] if taken is None else taken)
    return load_eventual(
        log.store, batches, len(log.open), shape.ids, pane=pane, closed=log.closed, grouped=shape.grouped,
        chunk_records=chunk_records,
    )  # fmt: skip


@given(shape=_SHAPES, seed=_SEEDS, chunk_records=st.sampled_from([1, 5, 20, 262_144]))
@examples(50)
def test_finds_what_a_walk_back_finds_and_reads_no_further(
    tmp_path_factory: pytest.TempPathFactory, shape: Shape, seed: int, chunk_records: int
) -> None:
    log = _write(DirectoryStore(tmp_path_factory.mktemp("store"), sync=False), shape, random.Random(seed))
    expected, needed = _walk_back(log, log.rows)
    taken: list[LoggedBatch] = []

    checkpoint = _load(log, chunk_records, taken)

    assert set(expected) == log.open
    assert _same(_as_found(checkpoint.rows), expected)
    assert checkpoint.windows == len(log.open)
    assert checkpoint.oldest == min((tau for tau, _ in expected.values()), default=None)
    assert checkpoint.records == sum(batch.punit.rows for batch in taken[:needed])
    assert checkpoint.bytes == sum(batch.punit.bytes for batch in taken[:needed])
    assert checkpoint.left_out == 0
    too_far = taken[needed:]
    assert sum(batch.punit.rows for batch in too_far[:-1]) < chunk_records, "no more than the rest of a chunk"
    if chunk_records == 1:
        assert len(taken) == needed


@given(shape=_SHAPES, seed=_SEEDS, chunk_records=st.sampled_from([1, 20]))
@examples(50)
def test_with_damaged_files_it_is_right_or_refused(
    tmp_path_factory: pytest.TempPathFactory, shape: Shape, seed: int, chunk_records: int
) -> None:
    rng = random.Random(seed)
    log = _write(DirectoryStore(tmp_path_factory.mktemp("store"), sync=False), shape, rng)
    for batch in rng.sample(log.batches, rng.randint(1, min(2, len(log.batches)))):
        _damage(log.store.path(batch.punit.name), rng)
    readable = [_readable(log, epoch) for epoch in range(len(log.batches))]
    expected, _ = _walk_back(log, readable)

    try:
        checkpoint = _load(log, chunk_records)
    except CorruptPUnitError:
        assert sum(map(len, readable)) < sum(map(len, log.rows)), "refused only if something is lost"
        return
    assert _same(_as_found(checkpoint.rows), expected)
    assert set(expected) == log.open, "never a closed window instead of an open one"


def _damage(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if rng.random() < 0.2:
        path.unlink()
        return
    if rng.random() < 0.2:
        del content[rng.randrange(len(content)) :]
    for _ in range(rng.randint(1, 2) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _readable(log: Written, epoch: int) -> list[Row]:
    """The records of a batch that are sound as far as they are of use."""
    kept, left_out = read_batch(log.store, log.batches[epoch].punit, epoch)
    if not left_out:
        return log.rows[epoch]
    if log.shape.grouped or not kept.height:
        return []
    sound = {(_window(row), repr(row["value"])) for row in kept.iter_rows(named=True)}
    return [row for row in log.rows[epoch] if (_window(row), repr(row["value"])) in sound]


def _log_of(store: DirectoryStore, kinds: list[dict[int, Kind]]) -> list[LoggedBatch]:
    """Newest first: by epoch, what became of which keys."""
    shape = Shape(pl.Int64(), panes=False, grouped=False, collide=False)
    batches = []
    for epoch, batch in enumerate(kinds):
        rows = [{"key": key, "value": [], KIND: int(kind)} for key, kind in batch.items()]
        batches.append(_write_batch(store, shape, epoch, rows))
    return batches[::-1]


def test_what_is_missing_is_said(store: DirectoryStore) -> None:
    batches = _log_of(store, [{1: Kind.OPEN, 2: Kind.OPEN, 3: Kind.OPEN}, {3: Kind.CHECK}])
    store.remove(["log/0"], Private("the test's own"))
    with pytest.raises(CorruptPUnitError) as caught:
        load_eventual(store, batches, 3, ["key"])
    assert "footprints of 2 of 3 open windows are missing" in str(caught.value)
    assert "left out as damaged: 3 records, of log/0" in str(caught.value)
    assert "backup" in caught.value.cure


def test_an_older_footprint_does_instead_of_a_lost_one(store: DirectoryStore) -> None:
    batches = _log_of(store, [{1: Kind.OPEN, 2: Kind.OPEN}, {1: Kind.CHECK}, {2: Kind.CHECK}])
    store.remove(["log/1"], Private("the test's own"))
    checkpoint = load_eventual(store, batches, 2, ["key"])
    assert dict(checkpoint.rows.select("key", TAU).iter_rows()) == {1: 0, 2: 2}
    assert (checkpoint.oldest, checkpoint.left_out) == (0, 1)


def test_a_window_whose_closing_is_lost_is_not_taken_for_an_open_one(store: DirectoryStore) -> None:
    batches = _log_of(store, [{1: Kind.OPEN}, {2: Kind.OPEN}, {2: Kind.CLOSED}, {3: Kind.OPEN}])
    store.remove(["log/2"], Private("the test's own"))
    with pytest.raises(CorruptPUnitError, match="which windows were closed in epoch 2 is lost"):
        load_eventual(store, batches, 2, ["key"])
    assert load_eventual(store, batches, 1, ["key"]).oldest == 3, "no matter if nothing older is needed"


def test_more_windows_than_there_should_be_are_refused(store: DirectoryStore) -> None:
    batches = _log_of(store, [{1: Kind.OPEN, 2: Kind.OPEN}])
    with pytest.raises(CorruptPUnitError, match="2 open windows, where 1 were open"):
        load_eventual(store, batches, 1, ["key"])


def test_where_no_window_is_open_nothing_is_read(store: DirectoryStore) -> None:
    unread = (pytest.fail("read") for _ in range(1))
    checkpoint = load_eventual(store, unread, 0, ["key"])
    assert (checkpoint.rows.height, checkpoint.oldest, checkpoint.records, checkpoint.chunks) == (0, None, 0, 0)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store", sync=False)
