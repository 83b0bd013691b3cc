"""P-units of streams: what is written is read, column by column, whatever it is and whoever writes beside."""

from __future__ import annotations

import datetime
import random
import threading
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from holdfast.errors import CorruptPUnitError
from holdfast.hidden_columns import BOUND
from holdfast.pstream import UnitWriter, read_unit, unit_writer
from holdfast.pstream.codecs import Lossy
from holdfast.store import DirectoryStore
from strategies import COLUMNS, SECONDS, Given, examples, streams

ALL = pl.DataFrame(
    {
        "i8": pl.Series([1, None, -128], dtype=pl.Int8),
        "u64": pl.Series([0, 2**64 - 1, None], dtype=pl.UInt64),
        "f32": pl.Series([0.5, float("nan"), None], dtype=pl.Float32),
        "text": ["", "日本語", None],
        "binary": [b"", b"\x00\xff", None],
        "flag": [True, False, None],
        "day": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None],
        "at": pl.Series([0, 2**62, None]).cast(pl.Datetime("ns", "UTC")),
        "span": pl.Series([-5, 5, None]).cast(pl.Duration("ms")),
        "price": pl.Series([Decimal("1.10"), Decimal("-0.01"), None], dtype=pl.Decimal(20, 2)),
        "list": [[1, 2], [], None],
        "struct": [{"a": 1, "b": "x"}, {"a": None, "b": None}, None],
        "kind": pl.Series(["a", "b", None], dtype=pl.Enum(["a", "b", "c"])),
        "word": pl.Series(["a", "b", None], dtype=pl.Categorical),
        "null": [None, None, None],
    }
)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("frame", [ALL, ALL.clear(), pl.concat([ALL] * 2_000)], ids=["three rows", "none", "many"])
def test_every_type_comes_back_as_it_was(tmp_path: Path, compress: bool, frame: pl.DataFrame) -> None:
    store = DirectoryStore(tmp_path, False)
    writer = UnitWriter(store, compress=compress)
    for number in range(2):  # the first is written before anything is known of the columns, the second after
        unit = writer.write(f"{number}.arrow", frame)
        assert (unit.rows, unit.bytes) == (frame.height, store.path(unit.name).stat().st_size)
        seen = read_unit(store, unit)
        assert_frame_equal(seen, frame)
        assert seen.schema == frame.schema


@given(stream=streams(*(name for name in COLUMNS), clocks=(SECONDS,), most=60))
@examples(30)
def test_any_stream_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, stream: Given) -> None:
    store = DirectoryStore(tmp_path_factory.mktemp("u"), False)
    writer = UnitWriter(store)
    frame = stream.frame()
    half = frame.height // 2
    for number, piece in enumerate((frame[:half], frame[half:], frame)):
        assert_frame_equal(read_unit(store, writer.write(f"{number}.arrow", piece)), piece)


@pytest.mark.parametrize("compress", [True, False])
def test_only_the_columns_that_are_asked_for_are_read_and_others_do_not_matter(tmp_path: Path, compress: bool) -> None:
    store = DirectoryStore(tmp_path, False)
    unit = UnitWriter(store, compress=compress).write("a.arrow", ALL)
    assert read_unit(store, unit, ["text", "i8", BOUND]).columns == ["i8", "text"]


def test_a_unit_says_itself_how_it_was_written(tmp_path: Path) -> None:
    """A reader needs neither the writer nor its statistics."""
    store = DirectoryStore(tmp_path, False)
    writer = UnitWriter(store)
    frames = [
        pl.DataFrame({"v": range(5_000)}),
        pl.DataFrame({"v": [7] * 5_000}),
        pl.DataFrame({"v": [(i * 2_654_435_761) % 2**61 for i in range(5_000)]}),
    ]
    units = [writer.write(f"{number}.arrow", frame) for number, frame in enumerate(frames * 4)]
    for unit, frame in zip(units, frames * 4, strict=True):
        assert_frame_equal(read_unit(store, unit), frame)


def test_several_threads_write_with_one_writer(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, False)
    writer = unit_writer(store)
    assert unit_writer(store) is writer
    assert unit_writer(store, compress=False) is not writer
    seen: dict[int, bool] = {}

    def work(number: int) -> None:
        frame = pl.DataFrame({"v": range(number, number + 500), "t": [str(i % 7) for i in range(500)]})
        same = [read_unit(store, writer.write(f"{number}-{i}.arrow", frame)).equals(frame) for i in range(10)]
        seen[number] = all(same)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == dict.fromkeys(range(6), True)


def test_a_lossy_column_loses_no_more_than_allowed_and_the_others_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, False)
    generator = random.Random(7)
    values = [generator.gauss(100, 20) for _ in range(5_000)]
    frame = pl.DataFrame({"a": values, "b": values})
    unit = UnitWriter(store, lossy=[Lossy("a", 0.01)]).write("u.arrow", frame)
    seen = read_unit(store, unit)
    assert (seen["a"] - frame["a"]).abs().max() <= 0.01  # type: ignore[operator]
    assert seen["b"].equals(frame["b"])


def test_a_name_is_used_once(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, False)
    writer = UnitWriter(store)
    unit = writer.write("a.arrow", ALL)
    with pytest.raises(FileExistsError):
        writer.write("a.arrow", ALL.head(1))
    assert_frame_equal(read_unit(store, unit), ALL)


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, False)
    unit = UnitWriter(store).write("a.arrow", ALL)
    path = store.path("a.arrow")
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 50)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptPUnitError):
            read_unit(store, unit)
