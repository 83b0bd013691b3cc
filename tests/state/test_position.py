"""Key positions are stored: the golden values below must never change without a new POSITION_VERSION."""

from __future__ import annotations

import datetime as dt

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import WrongTypeError
from holdfast.formats import POSITION_VERSION
from holdfast.state.position import key_positions, supports_key
from strategies import INT64_MAX, INT64_MIN, examples

NAN = float("nan")
GOLDEN = [
    (
        pl.Series([0, 1, -1, INT64_MAX, INT64_MIN]),
        [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20, 0x2A67D7552E039EA7, 0x481EC0A212A9F3DB],
    ),
    (pl.Series([0, 1, 2**64 - 1], dtype=pl.UInt64), [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1, 0xE4D971771B652C20]),
    (
        pl.Series([0.0, -0.0, 1.5, NAN, float("inf")]),
        [0xE220A8397B1DCDAF, 0xE220A8397B1DCDAF, 0xD6DAB18E1392608A, 0xC72971D82E15BB46, 0x249E5410C2F97D99],
    ),
    (
        pl.Series(["", "a", "b", "ab", "ba"]),
        [0xE220A8397B1DCDAF, 0xBC1B9EE1A188A3B6, 0x3FC118F59BA16630, 0xC795B6841664D157, 0x265221080D7B336],
    ),
    (
        pl.Series(["ß", "日本語", "🙂", "x" * 100]),
        [0x1229E537B1123864, 0x9783F81D5AB9FCE5, 0xC252C33666A3C992, 0xD4586C9C2960A8B9],
    ),
    (pl.Series([True, False]), [0x910A2DEC89025CC1, 0xE220A8397B1DCDAF]),
    (pl.Series([dt.date(1970, 1, 1), dt.date(2024, 2, 29)]), [0xE220A8397B1DCDAF, 0xDB8C04CA25F6E90D]),
    (pl.Series([dt.datetime(2024, 2, 29, 12)], dtype=pl.Datetime("us")), [0xBE34D00A6C8BEC4A]),
    (pl.Series([None], dtype=pl.Int64), [0xA7FB0C1B3A8D23E]),
    (pl.Series([None], dtype=pl.String), [0xA7FB0C1B3A8D23E]),
    (pl.Series([b"", b"a", b"\x00"]), [0xE220A8397B1DCDAF, 0xBC1B9EE1A188A3B6, 0xCC20DA17D43669A]),
]


def test_the_golden_values_belong_to_version_1():
    assert POSITION_VERSION == 1


@pytest.mark.parametrize(("column", "wanted"), GOLDEN, ids=lambda value: str(getattr(value, "dtype", "")) or None)
def test_golden_values(column, wanted):
    assert key_positions([column]).tolist() == wanted


def test_golden_values_of_several_columns():
    columns = [pl.Series([1, 2, None]), pl.Series(["a", "b", None])]
    assert key_positions(columns).tolist() == [0xEE6FC83C95167CDD, 0x6F535D5FBF251851, 0xD68CE2BF1ECA0E2B]
    assert key_positions([pl.Series(["a"]), pl.Series([1])]).tolist() == [0xC4B53145B203F5AA], "order matters"


def test_without_keys_all_rows_stand_at_zero():
    assert key_positions([], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "dtype", [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64], ids=lambda dtype: str(dtype)
)
def test_equal_integers_of_different_widths_have_equal_positions(dtype):
    values = [0, 1, 7, 100, None]
    assert np.array_equal(key_positions([pl.Series(values, dtype=dtype)]), key_positions([pl.Series(values)]))


def test_equal_floats_of_different_widths_have_equal_positions():
    values = [0.0, 1.5, -2.25, NAN, None]
    narrow = key_positions([pl.Series(values, dtype=pl.Float32)])
    assert np.array_equal(narrow, key_positions([pl.Series(values, dtype=pl.Float64)]))


def test_every_nan_is_one_key():
    patterns = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64)
    assert len(set(key_positions([pl.Series(patterns.view(np.float64))]).tolist())) == 1


@examples(60)
@given(words=st.lists(st.none() | st.text(max_size=9), max_size=30), start=st.integers(0, 10))
def test_a_position_depends_on_its_own_value_alone(words, start):
    """Slices, chunks and neighbours make no difference."""
    column = pl.Series(words, dtype=pl.String)
    whole = key_positions([column])
    assert np.array_equal(key_positions([column.slice(start)]), whole[start:])
    one_by_one = [key_positions([column[i : i + 1]])[0] for i in range(len(words))]
    assert whole.tolist() == one_by_one
    chunked = pl.concat([column.head(start), column.slice(start)], rechunk=False)
    assert np.array_equal(key_positions([chunked]), whole)


@pytest.mark.parametrize(
    "column",
    [
        pl.Series(range(100_000)),
        pl.Series([i << 32 for i in range(100_000)]),
        pl.Series([float(i) for i in range(100_000)]),
        pl.Series([f"user-{i}" for i in range(100_000)]),
    ],
    ids=["ints", "high-bits", "floats", "strings"],
)
def test_positions_are_spread_evenly_and_do_not_collide(column):
    positions = key_positions([column])
    assert len(np.unique(positions)) == len(positions)
    shares = np.bincount((positions >> np.uint64(60)).astype(np.int64), minlength=16) / len(positions)
    assert abs(shares - 1 / 16).max() < 0.005


@pytest.mark.parametrize(
    "dtype",
    [
        pl.List(pl.Int64), pl.Struct({"a": pl.Int64}), pl.Array(pl.Int64, 2), pl.Object,
        pl.Int128, pl.UInt128, pl.Decimal(20, 2),
    ],
)  # fmt: skip
def test_nested_and_wide_types_are_no_keys(dtype):
    dtype = dtype() if isinstance(dtype, type) else dtype
    assert not supports_key(dtype)
    with pytest.raises(WrongTypeError):
        key_positions([pl.Series("x", [], dtype=dtype)])
