"""When a batch breaks what the plan assumes, that column of that batch is encoded safely, and the encoder says so."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from codec_columns import assert_same_bits, through_a_file

from holdfast.pstream.codecs import (
    BaseDelta,
    BitPack,
    ByteCodec,
    Constant,
    Decimal,
    Delta,
    Dictionary,
    Encoding,
    Lossy,
    Narrow,
    RunLength,
    Scaled,
    TextBytes,
    VarByte,
    decode_frame,
    encode_frame,
)

RANDOM = np.random.default_rng(1)
WIDE = RANDOM.integers(-(2**63), 2**63 - 1, 2_000)

BROKEN: list[tuple[str, Encoding, pl.Series]] = [
    ("not constant", Constant(), pl.Series("c", [1] * 1_999 + [2])),
    ("not in runs", RunLength(), pl.Series("c", np.arange(2_000))),
    ("all distinct", Dictionary(), pl.Series("c", WIDE)),
    ("all distinct text", Dictionary(BitPack()), pl.Series("c", WIDE).cast(pl.String)),
    ("codes not constant", Dictionary(Constant()), pl.Series("c", ["a", "b"] * 1_000)),
    ("no decimals", Decimal(), pl.Series("c", RANDOM.random(2_000))),
    ("more decimals than planned", Decimal(digits=1), pl.Series("c", np.round(RANDOM.random(2_000), 3))),
    ("variable bytes are longer", VarByte(), pl.Series("c", WIDE)),
    ("bytes that do not shrink", ByteCodec("lz4"), pl.Series("c", WIDE)),
    ("integers as text", TextBytes(), pl.Series("c", [1, 2, 3])),
    ("text as integers", Delta(), pl.Series("c", ["a", "b"])),
    ("integers as decimals", Decimal(), pl.Series("c", [1, 2, 3])),
]


@pytest.mark.parametrize(("encoding", "column"), [one[1:] for one in BROKEN], ids=[one[0] for one in BROKEN])
def test_a_broken_assumption_costs_space_and_never_data(encoding: Encoding, column: pl.Series) -> None:
    encoded = encode_frame(column.to_frame(), {"c": encoding})
    assert list(encoded.fallbacks) == ["c"]
    assert encoded.used["c"] != encoding
    assert encoded.nbytes <= encode_frame(column.to_frame()).nbytes
    assert_same_bits(decode_frame(through_a_file(encoded.table))["c"], column)


def test_a_stream_that_leaves_the_planned_range_goes_on() -> None:
    """The plan is for small values; widths and dictionaries are found anew in each batch."""
    plan: dict[str, Encoding] = {"n": BaseDelta(BitPack()), "d": Delta(Narrow()), "s": Dictionary()}
    for batch in range(4):
        top = 10 ** (4 * batch + 1)
        numbers = RANDOM.integers(-top, top, 3_000)
        frame = pl.DataFrame({"n": numbers, "d": numbers, "s": [f"{value % (batch * 50 + 2)}" for value in numbers]})
        encoded = encode_frame(frame, plan)
        assert encoded.fallbacks == {}
        assert decode_frame(through_a_file(encoded.table)).equals(frame)


def test_other_columns_of_the_batch_keep_their_plan() -> None:
    frame = pl.DataFrame({"a": [7] * 100, "b": range(100)})
    encoded = encode_frame(frame, {"a": Constant(), "b": Constant()})
    assert encoded.used == {"a": Constant(), "b": BaseDelta()}
    assert encoded.sizes["a"] == 0


def test_a_plan_for_columns_that_are_not_there_is_ignored() -> None:
    frame = pl.DataFrame({"a": [1, 2]})
    assert decode_frame(encode_frame(frame, {"gone": Delta()})).equals(frame)


class TestLossy:
    @pytest.mark.parametrize("error", [0.5, 0.05, 0.005, 1e-6, 0.3, 7.0])
    @pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
    def test_the_bound_holds_for_every_value(self, error: float, dtype: pl.DataType) -> None:
        column = pl.Series("c", RANDOM.normal(0, 50, 5_000)).cast(dtype)
        encoded = encode_frame(column.to_frame(), {"c": Scaled(error)}, [Lossy("c", error)])
        found = decode_frame(encoded)["c"].cast(pl.Float64)
        assert (found - column.cast(pl.Float64)).abs().max() <= error
        assert encoded.sizes["c"] < 8 * 5_000 or error < 1e-5

    def test_half_way_values_are_within_the_bound_too(self) -> None:
        column = pl.Series("c", np.arange(4_000) / 64)
        encoded = encode_frame(column.to_frame(), {"c": Scaled(0.05)}, [Lossy("c", 0.05)])
        assert encoded.fallbacks == {}
        assert (decode_frame(encoded)["c"] - column).abs().max() <= 0.05

    def test_a_plan_alone_does_not_make_a_column_lossy(self) -> None:
        column = pl.Series("c", RANDOM.random(1_000))
        encoded = encode_frame(column.to_frame(), {"c": Scaled(0.5)})
        assert "not declared lossy" in encoded.fallbacks["c"]
        assert_same_bits(decode_frame(encoded)["c"], column)

    def test_the_plan_cannot_widen_the_bound(self) -> None:
        column = pl.Series("c", RANDOM.random(1_000))
        encoded = encode_frame(column.to_frame(), {"c": Scaled(0.5)}, [Lossy("c", 0.01)])
        assert_same_bits(decode_frame(encoded)["c"], column)

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e18], ids=str)
    def test_a_value_that_cannot_be_rounded_makes_the_batch_lossless(self, value: float) -> None:
        column = pl.Series("c", [*RANDOM.random(1_000), value])
        encoded = encode_frame(column.to_frame(), {"c": Scaled(0.01)}, [Lossy("c", 0.01)])
        assert list(encoded.fallbacks) == ["c"]
        assert_same_bits(decode_frame(encoded)["c"], column)

    def test_the_setting_is_enough_without_a_plan(self) -> None:
        column = pl.Series("c", RANDOM.random(1_000))
        encoded = encode_frame(column.to_frame(), lossy=[Lossy("c", 0.01)])
        assert encoded.used["c"] == Scaled(0.01)
        assert encoded.sizes["c"] <= 1_000

    def test_other_columns_and_other_types_stay_exact(self) -> None:
        frame = pl.DataFrame({"c": [1, 2, 3], "other": [0.123456789] * 3})
        assert decode_frame(encode_frame(frame, lossy=[Lossy("c", 0.5)])).equals(frame)
