"""Encodings of floats: byte planes, exact decimals as integers, and decimals within a stated error (lossy).

A float that was written as a decimal is n / 10^e with small n. Dividing integers below 2^53 by a power of ten up to
10^22 is correctly rounded, so the division gives back the very bits; the few values where it does not (-0.0, NaN,
infinities, true reals) are kept apart and patched in.
"""

from __future__ import annotations

import math
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
from holdfast.pstream.codecs.narrow import BaseDelta, Plain

__all__ = ["ByteSplit", "Decimal", "Scaled", "decimal_digits"]

_MOST_DIGITS = 15
_MOST_EXCEPTIONS = 1 / 16
_MOST_POWER = 22  # the largest power of ten that is a float
_CHUNK = 16_384
_LARGEST = float(1 << 53)


@register("byte-split")
@dataclass(frozen=True, slots=True)
class ByteSplit(Encoding):
    """The first bytes of all values, then the second, ...: a plane of equal bytes vanishes, others go to a child."""

    then: Encoding = field(default_factory=Plain)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        size = values.dtype.itemsize
        planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, size).T)
        return {"t": values.dtype.str, "n": values.size, "planes": [self._plane(plane, out) for plane in planes]}

    def _plane(self, plane: Numbers, out: Parts) -> Meta | int:
        if plane[0] == plane[-1] and (plane == plane[0]).all():
            return int(plane[0])
        kept = len(out.arrays)
        before = out.nbytes
        try:
            meta = encode_numbers(self.then, plane, out)
            if out.nbytes - before < plane.nbytes:
                return meta
        except EncodingMisfitError:
            pass
        del out.arrays[kept:]
        return encode_numbers(Plain(), plane, out)

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        values = np.zeros(meta["n"], meta["t"])
        table = values.view(np.uint8).reshape(-1, values.dtype.itemsize)
        for index, plane in enumerate(meta["planes"]):
            if plane != 0:
                table[:, index] = plane if isinstance(plane, int) else decode_numbers(plane, parts)
        return values


def decimal_digits(sample: Numbers) -> tuple[int, float]:
    """The number of decimals that needs the fewest bits, and the share of values that it does not hold exactly."""
    shares = []
    for digits in range(_MOST_DIGITS + 1):
        _, exact = _scaled(sample, digits)
        shares.append(1.0 - float(exact.mean()))
        if shares[-1] == 0.0:
            break
    exception = 32 + 8 * sample.dtype.itemsize
    bits = [digits * math.log2(10) + share * exception for digits, share in enumerate(shares)]
    best = bits.index(min(bits))
    return best, shares[best]


def _scaled(values: Numbers, digits: int) -> tuple[Numbers, Numbers]:
    """n of n / 10^digits per value, and where that is the very value. By chunks that stay in the cache."""
    whole = np.empty(values.size, np.int64)
    exact = np.empty(values.size, np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, values.size, _CHUNK):
            chunk = values[start : start + _CHUNK]
            scaled = np.rint(chunk.astype(np.float64, copy=False) * 10.0**digits)
            scaled += 0.0  # makes -0.0 what the integer will be: 0.0, which is not the very value
            back = (scaled / 10.0**digits).astype(chunk.dtype, copy=False)
            np.equal(as_bits(back), as_bits(chunk), out=exact[start : start + _CHUNK])
            exact[start : start + _CHUNK] &= np.abs(scaled) <= _LARGEST
            np.copyto(whole[start : start + _CHUNK], scaled, casting="unsafe")
    return whole, exact


def _divided(whole: Numbers, meta: Meta) -> Numbers:
    values: Numbers = np.divide(whole, 10.0 ** meta["digits"], dtype=np.float64)
    return values.astype(meta["t"], copy=False)


@register("decimal")
@dataclass(frozen=True, slots=True)
class Decimal(Encoding):
    """Floats that are decimals, as integers. The number of decimals is looked for in each batch unless it is given."""

    then: Encoding = field(default_factory=BaseDelta)
    digits: int | None = None

    def encode(self, values: Numbers, out: Parts) -> Meta:
        if values.dtype.kind != "f":
            raise EncodingMisfitError("only floats are decimals")
        digits = self.digits
        if digits is None:
            digits, _ = decimal_digits(values[:: max(1, values.size // 512)])
        whole, exact = _scaled(values, digits)
        meta: Meta = {"t": values.dtype.str, "digits": digits}
        if not exact.all():
            exceptions = np.flatnonzero(~exact)
            if exceptions.size > 1 + _MOST_EXCEPTIONS * values.size:
                raise EncodingMisfitError(f"{exceptions.size} of {values.size} values have more than {digits} decimals")
            # A neighbour in the place of an exception keeps ranges, deltas and runs as they are.
            whole[exceptions] = whole[exact.argmax()] if exact.any() else 0
            meta["at"] = out.add(exceptions.astype(np.uint32 if values.size < 1 << 32 else np.uint64))
            meta["are"] = out.add(values[exceptions])
        return {**meta, "then": encode_numbers(self.then, whole, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        whole = decode_numbers(meta["then"], parts)
        values = _divided(whole, meta)
        if "at" in meta:
            values[parts.numbers(meta["at"])] = parts.numbers(meta["are"])
        return values


@register("scaled")
@dataclass(frozen=True, slots=True)
class Scaled(Encoding):
    """Lossy: rounded to as few decimals as keep every value within `max_error`. Misfits when one value is not."""

    lossy = True

    max_error: float
    then: Encoding = field(default_factory=BaseDelta)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        if values.dtype.kind != "f":
            raise EncodingMisfitError("only floats are rounded")
        digits = max(0, math.ceil(-math.log10(2 * self.max_error)))
        try:
            whole = self._rounded(values, digits)
        except EncodingMisfitError:
            # A value half way between two decimals can miss the bound by the last bit.
            digits += 1
            whole = self._rounded(values, digits)
        return {"t": values.dtype.str, "digits": digits, "then": encode_numbers(self.then, whole, out)}

    def _rounded(self, values: Numbers, digits: int) -> Numbers:
        if digits > _MOST_POWER:
            raise EncodingMisfitError(f"{digits} decimals are too many")
        whole = np.empty(values.size, np.int64)
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, values.size, _CHUNK):
                self._round(values[start : start + _CHUNK], digits, whole[start : start + _CHUNK])
        return whole

    def _round(self, chunk: Numbers, digits: int, whole: Numbers) -> None:
        """Checked on what the decoder will compute."""
        exact = chunk.astype(np.float64, copy=False)
        scaled = np.rint(exact * 10.0**digits)
        if not (np.abs(scaled) <= _LARGEST).all():
            raise EncodingMisfitError("a value is too large, infinite or not a number")
        back = (scaled / 10.0**digits).astype(chunk.dtype, copy=False)
        error = np.abs(back.astype(np.float64, copy=False) - exact).max()
        if not error <= self.max_error:
            raise EncodingMisfitError(f"an error of {error} is more than {self.max_error}")
        np.copyto(whole, scaled, casting="unsafe")

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        whole = decode_numbers(meta["then"], parts)
        return _divided(whole, meta)
