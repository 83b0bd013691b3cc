"""Fingerprints tell every change, whatever the type; a damaged batch yields what is sound in it, and nothing else."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from datetime import time as daytime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from holdfast.errors import UnknownVersionError
from holdfast.hidden_columns import FINGERPRINT, KIND
from holdfast.pstream.punit import PUnit, write_punit, write_table
from holdfast.state import footprints
from holdfast.state.footprints import FootprintKind, fingerprints, read_batch, sealed, sound
from holdfast.store import DirectoryStore, Private
from strategies import examples

_INT64 = st.integers(-(2**63), 2**63 - 1)
_FLOAT = st.floats(allow_nan=False)
_TEXT = st.text(max_size=5)
_NAIVE = st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1))

_PLAIN: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [
    (pl.Int64(), _INT64),
    (pl.Int8(), st.integers(-128, 127)),
    (pl.UInt64(), st.integers(0, 2**64 - 1)),
    (pl.Int128(), st.integers(-(2**127), 2**127 - 1)),
    (pl.UInt128(), st.integers(0, 2**128 - 1)),
    (pl.Decimal(30, 3), st.decimals(-(10**20), 10**20, places=3)),
    (pl.Float64(), _FLOAT),
    (pl.Float32(), st.floats(allow_nan=False, width=32)),
    (pl.Boolean(), st.booleans()),
    (pl.String(), _TEXT),
    (pl.Binary(), st.binary(max_size=5)),
    (pl.Categorical(), st.sampled_from(["a", "b", ""])),
    (pl.Enum(["a", "b"]), st.sampled_from(["a", "b"])),
    (pl.Date(), st.dates(date(1800, 1, 1), date(2200, 1, 1))),
    (pl.Time(), st.times()),
    (pl.Datetime("us"), _NAIVE),
    (pl.Datetime("ms", "UTC"), st.builds(lambda d: d.replace(microsecond=0, tzinfo=UTC), _NAIVE)),
    (pl.Duration("us"), st.timedeltas(timedelta(-1000), timedelta(1000))),
]
Typed = tuple[pl.DataType, st.SearchStrategy[Any]]


def _listed(inner: Typed) -> Typed:
    return pl.List(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def _arrayed(inner: Typed) -> Typed:
    return pl.Array(inner[0], 2), st.lists(st.none() | inner[1], min_size=2, max_size=2)


def _structured(one: Typed, two: Typed) -> Typed:
    values = st.fixed_dictionaries({"one": st.none() | one[1], "two": st.none() | two[1]})
    return pl.Struct({"one": one[0], "two": two[0]}), values


_TYPED: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(_PLAIN),
    lambda inner: inner.map(_listed) | inner.map(_arrayed) | st.builds(_structured, inner, inner),
    max_leaves=4,
)


@given(data=st.data(), typed=st.lists(_TYPED, min_size=1, max_size=3), seed=_INT64)
@examples(50)
def test_any_change_of_any_cell_changes_the_fingerprint_of_its_row_only(
    data: st.DataObject, typed: list[Typed], seed: int
) -> None:
    columns = [data.draw(st.lists(st.none() | values, min_size=3, max_size=3)) for _, values in typed]
    rows = _frame(typed, columns)
    row, column = data.draw(st.integers(0, 2)), data.draw(st.integers(0, len(typed) - 1))
    other = [list(values) for values in columns]
    other[column][row] = data.draw(st.none() | typed[column][1])
    changed = _frame(typed, other)

    before, after = fingerprints(rows, seed), fingerprints(changed, seed)

    is_other = [not _is_same(a, b) for a, b in zip(rows.rows(), changed.rows(), strict=True)]
    assert (before != after).tolist() == is_other
    assert (fingerprints(rows, seed + 1) != before).all()
    assert np.array_equal(fingerprints(rows[[2, 1, 0]], seed)[::-1], before), "a fingerprint is of its row alone"
    assert np.array_equal(fingerprints(pl.concat([rows[:1], rows[1:]]), seed), before), "however it lies in memory"


def _is_same(one: Any, two: Any) -> bool:
    """0.0 and -0.0 are equal, but not the same."""
    return repr(one) == repr(two)


def _frame(typed: list[Typed], columns: list[list[Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            pl.Series(f"c{at}", values, dtype=dtype)
            for at, ((dtype, _), values) in enumerate(zip(typed, columns, strict=True))
        ]
    )


def test_null_empty_and_list_of_null_differ() -> None:
    lists = pl.DataFrame({"x": pl.Series([None, [], [None], [None, None], [0], [0, None]], dtype=pl.List(pl.Int64))})
    structs = pl.DataFrame({"x": pl.Series([None, {"a": None}, {"a": 0}], dtype=pl.Struct({"a": pl.Int64}))})
    assert len(set(fingerprints(lists, 1))) == lists.height
    assert len(set(fingerprints(structs, 1))) == structs.height


def test_elements_that_move_from_one_list_to_the_next_are_seen() -> None:
    one = pl.DataFrame({"x": [[1, 2], [3]]})
    two = pl.DataFrame({"x": [[1], [2, 3]]})
    assert (fingerprints(one, 1) != fingerprints(two, 1)).all()
    assert (fingerprints(pl.DataFrame({"x": [[1, 2]]}), 1) != fingerprints(pl.DataFrame({"x": [[2, 1]]}), 1)).all()


@pytest.mark.parametrize(
    "changed",
    [
        pl.DataFrame({"b": [1], "a": [2]}),
        pl.DataFrame({"a": [1], "c": [2]}),
        pl.DataFrame({"a": [2], "b": [1]}),
        pl.DataFrame({"a": [1], "b": [2]}, schema_overrides={"b": pl.UInt64}),
        pl.DataFrame({"a": [1], "b": [2]}, schema_overrides={"b": pl.Duration("us")}),
        pl.DataFrame({"a": [1], "b": [2], "c": [None]}),
    ],
)
def test_names_types_and_order_of_columns_are_part_of_it(changed: pl.DataFrame) -> None:
    assert (fingerprints(pl.DataFrame({"a": [1], "b": [2]}), 1) != fingerprints(changed, 1)).all()


def test_an_enum_may_come_back_as_text() -> None:
    values = pl.DataFrame({"x": ["a", None, "b"]})
    for dtype in (pl.Categorical(), pl.Enum(["b", "a"])):
        assert np.array_equal(fingerprints(values, 5), fingerprints(values.cast(dtype), 5))


_GOLDEN_ROWS = pl.DataFrame(
    {
        "i": [1, None],
        "f": [1.5, -0.0],
        "s": ["key", None],
        "b": [True, False],
        "t": [datetime(2024, 2, 29, 12), None],
        "d": pl.Series([Decimal("-1.25"), None], dtype=pl.Decimal(20, 2)),
        "w": pl.Series([-(2**100), 7], dtype=pl.Int128),
        "l": [[1, None], []],
        "n": [None, None],
        "g": [[{"x": 1, "y": "a"}, None], None],
        "o": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int16, 2)),
        "c": pl.Series(["u", "v"], dtype=pl.Categorical),
        "y": [daytime(1, 2, 3), None],
    }
)


_GOLDEN_ALL = [0xDB77D13B383C9151, 0xDDF85C4ABDCB636A]
_GOLDEN = {
    "i": 0x22063714D085BCC8,
    "f": 0x7DC4ED832C0D6D6F,
    "s": 0x199AC1176C4939D8,
    "b": 0x3F84E0A1ACB554D1,
    "t": 0x4D288D2D62867819,
    "d": 0xB7D5224C127E7B0F,
    "w": 0x7FD2E1BE547DBDC3,
    "l": 0x36A54B6EC117CF68,
    "n": 0x7BE06FF305E40A3D,
    "g": 0x9166B6228FCDFFEA,
    "o": 0x76031593CFF49FF5,
    "c": 0xC37E71419FAD3ECE,
    "y": 0xED30BC277048D30D,
}


def test_the_function_never_changes_silently() -> None:
    assert fingerprints(_GOLDEN_ROWS, 7).tolist() == _GOLDEN_ALL
    assert {name: fingerprints(_GOLDEN_ROWS.select(name), 0).tolist()[0] for name in _GOLDEN_ROWS.columns} == _GOLDEN


def test_sealed_records_are_sound_in_their_epoch_only() -> None:
    records = sealed(_GOLDEN_ROWS, [FootprintKind.OPEN, FootprintKind.CLOSED], 9)
    assert records.columns == [KIND, *_GOLDEN_ROWS.columns, FINGERPRINT]
    assert (records.schema[KIND], records.schema[FINGERPRINT]) == (pl.UInt8(), pl.UInt64())
    assert records[KIND].to_list() == [1, 3]
    assert sound(records, 9).all()
    assert not sound(records, 8).any()
    assert not sound(records.with_columns(pl.lit(2, pl.UInt8).alias(KIND)), 9).any()
    assert not sound(records.drop(FINGERPRINT), 9).any()
    assert sealed(_GOLDEN_ROWS.clear(), FootprintKind.OPEN, 9).columns == records.columns


def _batch(rows: int) -> pl.DataFrame:
    at = pl.int_range(rows)
    return pl.select(
        key=pl.format("key {}", at),
        pane=at * 7,
        state=pl.when(at % 5 != 0).then(pl.concat_list(pl.struct(a=at, b=at / 3, c=pl.format("{}", at)))),
        tags=pl.format("t{}", at % 3).cast(pl.Categorical),
        amount=at.cast(pl.Decimal(20, 2)),
        seen=pl.lit(datetime(2024, 1, 1)) + pl.duration(seconds=at),
    )


def _written(store: DirectoryStore, rows: int, epoch: int) -> tuple[pl.DataFrame, PUnit]:
    records = sealed(_batch(rows), FootprintKind.CHECK, epoch)
    return records, write_punit(store, "batch", records)


@given(data=st.data())
@examples(50)
def test_of_a_damaged_file_only_sound_records_are_used(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = DirectoryStore(tmp_path_factory.mktemp("store"), sync=False)
    records, punit = _written(store, data.draw(st.integers(1, 40)), 3)
    path = store.path("batch")
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    for at in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=4)) if content else []:
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)

    kept, left_out = read_batch(store, punit, 3)

    assert kept.height + left_out == punit.rows
    if kept.height:
        expected = records.filter(pl.col(FINGERPRINT).is_in(kept[FINGERPRINT].implode()))
        assert_frame_equal(kept, expected, categorical_as_str=True)


def test_one_flipped_value_costs_one_record(store: DirectoryStore, caplog: pytest.LogCaptureFixture) -> None:
    records, punit = _written(store, 40, 3)
    path = store.path("batch")
    content = path.read_bytes()
    assert content.count((11 * 7).to_bytes(8, "little")) == 1
    path.write_bytes(content.replace((11 * 7).to_bytes(8, "little"), (12 * 7 + 1).to_bytes(8, "little")))

    with caplog.at_level(logging.WARNING):
        kept, left_out = read_batch(store, punit, 3)

    assert left_out == 1
    assert_frame_equal(kept, records.filter(pl.col("pane") != 77), categorical_as_str=True)
    assert str(path) in caplog.text
    assert "1 of its 40 records were left out" in caplog.text


def test_a_missing_file_has_no_records(store: DirectoryStore) -> None:
    _, punit = _written(store, 40, 3)
    store.remove(["batch"], Private("the test's own"))
    kept, left_out = read_batch(store, punit, 3)
    assert (kept.height, left_out) == (0, 40)


def test_a_sound_file_is_read_without_a_look_at_fingerprints(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, punit = _written(store, 40, 3)
    monkeypatch.setattr(footprints, "sound", None)
    kept, left_out = read_batch(store, punit, 3)
    assert left_out == 0
    assert_frame_equal(kept, records, categorical_as_str=True)


def test_a_spoilt_file_is_restored_from_a_sound_copy(tmp_path: Path) -> None:
    backup = DirectoryStore(tmp_path / "backup", sync=False)
    _, punit = _written(backup, 40, 3)
    store = replace(DirectoryStore(tmp_path / "store", sync=False), other_places=(backup.root,))
    store.write("batch", b"torn")
    kept, left_out = read_batch(store, punit, 3)
    assert (kept.height, left_out) == (40, 0)
    assert store.path("batch").read_bytes() == backup.path("batch").read_bytes()


def test_a_batch_of_another_version_is_refused(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(write_table.__globals__, "PUNIT_VERSION", 999)
    punit = write_table(store, "batch", sealed(_batch(3), FootprintKind.OPEN, 1).to_arrow(), 3)
    monkeypatch.undo()
    with pytest.raises(UnknownVersionError):
        read_batch(store, punit, 1)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store", sync=False)
