"""Which encodings are worth a trial on a column, from its type and statistics. Pure: no values are looked at."""

from __future__ import annotations

import polars as pl

from holdfast.pstream.codecs.bits import BitPack
from holdfast.pstream.codecs.column import is_encodable, is_text
from holdfast.pstream.codecs.dictionary import Dictionary
from holdfast.pstream.codecs.encoding import Encoding
from holdfast.pstream.codecs.floats import ByteSplit, Decimal, Scaled
from holdfast.pstream.codecs.heavy import ByteCodec, Pco, TextBytes
from holdfast.pstream.codecs.narrow import BaseDelta, Constant, Plain, Zigzag
from holdfast.pstream.codecs.sequence import Delta, RunLength
from holdfast.pstream.codecs.statistics import Statistics

__all__ = ["candidates"]

_WORTH_A_RUN = 3.0
_MORE_THAN_A_BYTE = 6.0  # mean bits around the median
_WORTH_A_DICTIONARY = 0.25


def candidates(dtype: pl.DataType, seen: Statistics, rows: int, max_error: float | None = None) -> list[Encoding]:
    """Plain first. `rows` is the size of a batch, `max_error` the error allowed on this column, if one is."""
    if not is_encodable(dtype):
        return [Plain()]
    if seen.values == 0:  # nothing but nulls
        return [Plain(), Dictionary(Constant()) if is_text(dtype) else Constant()]
    if is_text(dtype):
        return [Plain(), *_text(seen, rows)]
    if dtype == pl.Boolean:
        return [Plain(), *_constant(seen), *_runs(seen, BitPack())]
    if dtype.is_float():
        return [Plain(), *_floats(seen, rows, max_error)]
    return [Plain(), *_integers(seen, rows), Pco(0)]


def _constant(seen: Statistics) -> list[Encoding]:
    return [Constant()] if seen.distinct * seen.values <= 1 else []


def _runs(seen: Statistics, values: Encoding) -> list[Encoding]:
    return [RunLength(), RunLength(values, BitPack())] if seen.run >= _WORTH_A_RUN else []


def _integers(seen: Statistics, rows: int) -> list[Encoding]:
    found: list[Encoding] = [*_constant(seen), BaseDelta(), BaseDelta(BitPack())]
    if seen.size > _MORE_THAN_A_BYTE and seen.delta_size < seen.size:
        found += [Delta(), Delta(BaseDelta(BitPack()))]
        if seen.second_size <= seen.delta_size:
            found += [Delta(Delta()), Delta(Delta(Zigzag(BitPack())))]
    found += _runs(seen, BaseDelta(BitPack()))
    if seen.run >= _WORTH_A_RUN and seen.delta_size < seen.size:
        found.append(RunLength(Delta(BaseDelta(BitPack())), BitPack()))
    if seen.distinct_in(rows) <= _WORTH_A_DICTIONARY and seen.size > _MORE_THAN_A_BYTE:
        found += [Dictionary(), Dictionary(BitPack())]
    light, heavy = ByteCodec("lz4"), ByteCodec("zstd")
    return [*found, BaseDelta(light), BaseDelta(ByteSplit(light)), BaseDelta(heavy)]


def _floats(seen: Statistics, rows: int, max_error: float | None) -> list[Encoding]:
    found: list[Encoding] = [*_constant(seen), *_runs(seen, Plain())]
    if max_error is not None:
        whole = [BaseDelta(), BaseDelta(BitPack()), Delta(), Delta(Zigzag(BitPack())), Pco(0)]
        found += [Scaled(max_error, encoding) for encoding in whole]
    if seen.digits is not None:
        found += [
            Decimal(BaseDelta()),
            Decimal(BaseDelta(BitPack())),
            Decimal(Delta()),
            Decimal(Delta(Zigzag(BitPack()))),
        ]
    if seen.distinct_in(rows) <= _WORTH_A_DICTIONARY:
        found += [Dictionary(), Dictionary(BitPack())]
    return [*found, ByteSplit(ByteCodec("lz4")), ByteSplit(ByteCodec("zstd")), Pco(0)]


def _text(seen: Statistics, rows: int) -> list[Encoding]:
    found: list[Encoding] = []
    if seen.distinct * seen.values <= 1:
        found.append(Dictionary(Constant()))
    if seen.distinct_in(rows) <= 2 * _WORTH_A_DICTIONARY:
        found += [Dictionary(), Dictionary(BitPack())]
        if seen.run >= _WORTH_A_RUN:
            found.append(Dictionary(RunLength()))
    return [*found, TextBytes(Plain()), TextBytes(ByteCodec("lz4")), TextBytes(ByteCodec("zstd"))]
