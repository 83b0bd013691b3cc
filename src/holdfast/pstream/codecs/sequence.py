"""Encodings that use the order of the values: delta (twice is delta-of-delta), run-length, XOR with the previous."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from holdfast.pstream.codecs.encoding import (
    Encoding,
    EncodingMisfitError,
    Meta,
    Numbers,
    Parts,
    as_bits,
    decode_numbers,
    encode_numbers,
    register,
)
from holdfast.pstream.codecs.narrow import Narrow

__all__ = ["Delta", "RunLength", "Xor"]


@register("delta")
@dataclass(frozen=True, slots=True)
class Delta(Encoding):
    """Differences of neighbours, modulo the width of the type, so that nothing overflows. Decoded by a running sum."""

    then: Encoding = field(default_factory=Narrow)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        bits = as_bits(values)
        signed = f"<i{bits.dtype.itemsize}"
        deltas = (bits[1:] - bits[:-1]).view(signed)
        return {"t": values.dtype.str, "first": int(bits[0]), "then": encode_numbers(self.then, deltas, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        deltas = decode_numbers(meta["then"], parts)
        dtype = np.dtype(meta["t"])
        sums = np.empty(deltas.size + 1, f"<u{dtype.itemsize}")
        sums[0] = meta["first"]
        np.copyto(sums[1:], deltas, casting="unsafe")
        np.cumsum(sums, out=sums, dtype=sums.dtype)
        return sums.view(dtype)


@register("run-length")
@dataclass(frozen=True, slots=True)
class RunLength(Encoding):
    """Each run of equal values once, and the lengths of the runs."""

    values: Encoding = field(default_factory=Narrow)
    lengths: Encoding = field(default_factory=Narrow)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        bits = as_bits(values)
        starts = np.flatnonzero(bits[1:] != bits[:-1]) + 1
        if 2 * starts.size > bits.size + 2:
            raise EncodingMisfitError("the runs are shorter than two values")
        starts = np.concatenate((np.zeros(1, starts.dtype), starts))
        lengths = np.diff(starts, append=bits.size)
        return {
            "values": encode_numbers(self.values, values[starts], out),
            "lengths": encode_numbers(self.lengths, lengths, out),
        }

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        lengths = decode_numbers(meta["lengths"], parts).astype(np.int64, copy=False)
        return np.repeat(decode_numbers(meta["values"], parts), lengths)


@register("xor")
@dataclass(frozen=True, slots=True)
class Xor(Encoding):
    """Bits that differ from the previous value: near neighbours leave the high bytes zero."""

    then: Encoding

    def encode(self, values: Numbers, out: Parts) -> Meta:
        bits = as_bits(values)
        changed = bits.copy()
        changed[1:] ^= bits[:-1]
        return {"t": bits.dtype.str, "then": encode_numbers(self.then, changed, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        changed = decode_numbers(meta["then"], parts).astype(meta["t"], copy=False)
        return np.bitwise_xor.accumulate(changed)
