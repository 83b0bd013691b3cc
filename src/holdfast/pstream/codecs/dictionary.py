"""Dictionary encoding of numbers and text: each distinct value once, and a code per row.

Text is told apart by a 64-bit hash, and the result is compared with the input, so that a collision costs a fallback
and never a wrong value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from holdfast.pstream.codecs.encoding import (
    Encoding,
    EncodingMisfitError,
    Meta,
    Numbers,
    Parts,
    as_arrow,
    as_bits,
    as_numpy,
    decode_numbers,
    encode_numbers,
    register,
)
from holdfast.pstream.codecs.narrow import Narrow

__all__ = ["Dictionary"]


@register("dictionary")
@dataclass(frozen=True, slots=True)
class Dictionary(Encoding):
    """Codes in order of first appearance. Misfits when nearly all values are distinct."""

    codes: Encoding = field(default_factory=Narrow)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        codes, distinct = _numbered(as_bits(values))
        return {"values": out.add(distinct.view(values.dtype)), "codes": encode_numbers(self.codes, codes, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        return parts.numbers(meta["values"])[decode_numbers(meta["codes"], parts)]

    def encode_text(self, values: pl.Series, out: Parts) -> Meta:
        codes, hashes = _numbered(values.hash().to_numpy())
        first = np.empty(hashes.size, np.int64)
        first[codes[::-1]] = np.arange(codes.size - 1, -1, -1)
        distinct = values.gather(first)
        if not (distinct.gather(codes) == values).all():
            raise EncodingMisfitError("two different values have the same hash")
        return {"values": out.add(distinct.to_arrow()), "codes": encode_numbers(self.codes, codes, out)}

    @classmethod
    def decode_text(cls, meta: Meta, parts: Parts) -> pl.Series:
        codes = decode_numbers(meta["codes"], parts)
        return pl.Series(parts.arrays[meta["values"]]).gather(codes.astype(np.uint32, copy=False))


def _numbered(bits: Numbers) -> tuple[Numbers, Numbers]:
    encoded = as_arrow(bits).dictionary_encode()
    if 8 * len(encoded.dictionary) > 7 * bits.size + 8:
        raise EncodingMisfitError("nearly all values are distinct")
    return as_numpy(encoded.indices), as_numpy(encoded.dictionary)
