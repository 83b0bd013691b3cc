"""Every lossless encoding gives back every bit, or says beforehand that the values do not suit it."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from codec_columns import (
    FLOAT_TYPES,
    NUMBER_ENCODINGS,
    NUMBER_TYPES,
    TEXT_ENCODINGS,
    assert_same_bits,
    columns,
    numbers,
    through_a_file,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pstream.codecs import BaseDelta, BitPack, Decimal, Encoding, decode_frame, encode_frame
from holdfast.pstream.codecs.bits import _pack, _unpack
from holdfast.pstream.codecs.encoding import EncodingMisfitError, Parts, decode_numbers, encode_numbers, exactly
from strategies import examples


@pytest.mark.parametrize("encoding", NUMBER_ENCODINGS, ids=str)
@given(data=st.data())
@examples(20)
def test_numbers_of_all_widths_come_back_bit_for_bit(encoding: Encoding, data: st.DataObject) -> None:
    types = FLOAT_TYPES if encoding.tag == "decimal" else NUMBER_TYPES
    values = data.draw(st.sampled_from(types).flatmap(numbers))
    parts = Parts()
    try:
        meta = encode_numbers(encoding, values, parts)
    except EncodingMisfitError:
        return
    back = exactly(decode_numbers(meta, parts), values.dtype)
    assert back.dtype == values.dtype
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("encoding", NUMBER_ENCODINGS, ids=str)
@given(column=columns(text=False))
@examples(8)
def test_columns_of_numbers_and_times_come_back_with_their_nulls(encoding: Encoding, column: pl.Series) -> None:
    encoded = encode_frame(column.to_frame(), {"c": encoding})
    assert_same_bits(decode_frame(through_a_file(encoded.table))["c"], column)


@pytest.mark.parametrize("encoding", TEXT_ENCODINGS, ids=str)
@given(column=columns(text=True))
@examples(20)
def test_columns_of_text_come_back_with_their_nulls(encoding: Encoding, column: pl.Series) -> None:
    encoded = encode_frame(column.to_frame(), {"c": encoding})
    assert_same_bits(decode_frame(through_a_file(encoded.table))["c"], column)


@given(column=columns())
@examples(60)
def test_without_a_plan_columns_are_encoded_safely(column: pl.Series) -> None:
    encoded = encode_frame(column.to_frame())
    assert encoded.fallbacks == {}
    assert_same_bits(decode_frame(encoded)["c"], column)


@pytest.mark.parametrize(
    "encoding", [one for one in NUMBER_ENCODINGS if one.tag not in ("constant", "decimal")], ids=str
)
def test_every_encoding_is_really_used_on_numbers_that_suit_it(encoding: Encoding) -> None:
    frame = pl.DataFrame({"c": np.repeat(np.arange(1_000), 5)})
    encoded = encode_frame(frame, {"c": encoding})
    assert encoded.fallbacks == {}
    assert encoded.used["c"] == encoding
    assert_same_bits(decode_frame(encoded)["c"], frame["c"])


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("special", [-0.0, float("nan"), float("inf"), -1e-300, 2.0**53 + 2, 1e300, 1 / 3], ids=str)
@pytest.mark.parametrize("at", [0, 500, 999])
def test_decimals_keep_the_few_values_that_are_none(dtype: str, special: float, at: int) -> None:
    values = (np.arange(-500, 500) / 100).astype(dtype)
    with np.errstate(over="ignore"):
        values[at] = special
    frame = pl.DataFrame({"c": values})
    encoded = encode_frame(frame, {"c": Decimal(BaseDelta(BitPack()))})
    assert encoded.fallbacks == {}
    assert encoded.sizes["c"] < 0.5 * values.nbytes
    assert_same_bits(decode_frame(encoded)["c"], frame["c"])


@pytest.mark.parametrize("rows", [1, 1023, 1024, 1025, 5000])
def test_bit_packing_patches_rare_wide_values(rows: int) -> None:
    random = np.random.default_rng(rows)
    values = random.integers(0, 30, rows)
    values[random.integers(0, rows, 1 + rows // 100)] = 2**62
    frame = pl.DataFrame({"c": values})
    encoded = encode_frame(frame, {"c": BitPack()})
    assert_same_bits(decode_frame(encoded)["c"], frame["c"])
    if rows > 1024:
        assert encoded.sizes["c"] < 1.2 * rows


@pytest.mark.parametrize("width", range(65))
def test_bit_packing_at_every_width(width: int) -> None:
    largest = (1 << width) - 1
    values = np.random.default_rng(width).integers(0, largest, 2048, np.uint64, endpoint=True)
    values[0] = largest
    words = _pack(values, width) if width else np.empty(0, np.uint8)
    assert words.nbytes == 2048 * width // 8
    assert np.array_equal(_unpack(words, width, 2048), values)
