"""Encodings that drop leading zeros or a common base: plain, constant, narrowed, base-delta, zigzag.

They cost one or two passes at memory speed and are the cheap end of the menu.
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
    as_bits,
    decode_numbers,
    encode_numbers,
    register,
    smallest_type,
)

__all__ = ["BaseDelta", "Constant", "Narrow", "Plain", "Zigzag"]


@register("plain")
@dataclass(frozen=True, slots=True)
class Plain(Encoding):
    """The values as they are; a whole column is kept as its Arrow array and read without a copy."""

    def encode(self, values: Numbers, out: Parts) -> Meta:
        return {"p": out.add(values)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        return parts.numbers(meta["p"])

    def encode_text(self, values: pl.Series, out: Parts) -> Meta:
        return {"p": out.add(values.to_arrow())}

    @classmethod
    def decode_text(cls, meta: Meta, parts: Parts) -> pl.Series:
        return pl.Series(parts.arrays[meta["p"]])


@register("constant")
@dataclass(frozen=True, slots=True)
class Constant(Encoding):
    """One value, and how often."""

    def encode(self, values: Numbers, out: Parts) -> Meta:
        bits = as_bits(values)
        if bits[-1] != bits[0] or not (bits == bits[0]).all():
            raise EncodingMisfitError("the values are not all equal")
        return {"t": bits.dtype.str, "v": int(bits[0]), "n": bits.size}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        return np.full(meta["n"], meta["v"], meta["t"])


@register("narrow")
@dataclass(frozen=True, slots=True)
class Narrow(Encoding):
    """Null suppression by whole bytes: the smallest integer type that holds the batch."""

    then: Encoding = field(default_factory=Plain)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        numbers = as_bits(values) if values.dtype.kind == "f" else values
        smallest = smallest_type(int(numbers.min()), int(numbers.max()))
        if smallest.itemsize < numbers.dtype.itemsize:
            numbers = numbers.astype(smallest)
        return {"then": encode_numbers(self.then, numbers, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        return decode_numbers(meta["then"], parts)


@register("base-delta")
@dataclass(frozen=True, slots=True)
class BaseDelta(Encoding):
    """Frame of reference: value - smallest value, in the smallest unsigned type."""

    then: Encoding = field(default_factory=Plain)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        numbers = as_bits(values) if values.dtype.kind == "f" else values
        low, high = int(numbers.min()), int(numbers.max())
        bits = as_bits(numbers)
        base = low % (1 << (8 * bits.dtype.itemsize))
        # The low bits of a difference are the difference of the low bits: cut first, and subtract where it is cheap.
        offsets = bits.astype(smallest_type(0, high - low))
        offsets -= offsets.dtype.type(base % (1 << (8 * offsets.dtype.itemsize)))
        return {"t": numbers.dtype.str, "base": base, "then": encode_numbers(self.then, offsets, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        offsets = decode_numbers(meta["then"], parts)
        dtype = np.dtype(meta["t"])
        unsigned = np.dtype(f"<u{dtype.itemsize}")
        if meta["base"] == 0 and offsets.dtype.kind == "u":
            return offsets
        sums: Numbers = np.add(offsets, unsigned.type(meta["base"]), dtype=unsigned, casting="unsafe")
        return sums.view(dtype)


@register("zigzag")
@dataclass(frozen=True, slots=True)
class Zigzag(Encoding):
    """Signed values around zero as small unsigned ones: 0, -1, 1, -2 become 0, 1, 2, 3."""

    then: Encoding = field(default_factory=Narrow)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        size = values.dtype.itemsize
        signed = values.view(f"<i{size}")
        folded = as_bits((signed << 1) ^ (signed >> (8 * size - 1)))
        return {"t": values.dtype.str, "then": encode_numbers(self.then, folded, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        dtype = np.dtype(meta["t"])
        folded = decode_numbers(meta["then"], parts).astype(f"<u{dtype.itemsize}", copy=False)
        one = folded.dtype.type(1)
        values: Numbers = (folded >> one) ^ -(folded & one)
        return values.view(dtype)
