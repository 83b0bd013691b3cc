"""An encoding as it would stand in `pstream/codecs/`: values that are all multiples of some number, from a base on."""

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


@register("common-factor")
@dataclass(frozen=True, slots=True)
class CommonFactor(Encoding):
    """How many times the greatest common divisor of all differences lies between a value and the least one."""

    then: Encoding = field(default_factory=Narrow)

    def encode(self, values: Numbers, out: Parts) -> Meta:
        numbers = as_bits(values) if values.dtype.kind == "f" else values
        base = int(numbers.min())
        offsets = as_bits(numbers) - as_bits(numbers.dtype.type([base]))  # modulo the width of the type
        factor = int(np.gcd.reduce(offsets))
        if factor <= 1:
            raise EncodingMisfitError("the values have no common factor")
        counts = offsets // offsets.dtype.type(factor)
        return {"t": numbers.dtype.str, "base": base, "by": factor, "then": encode_numbers(self.then, counts, out)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        dtype = np.dtype(meta["t"])
        unsigned = np.dtype(f"<u{dtype.itemsize}")
        counts = decode_numbers(meta["then"], parts).astype(unsigned)
        values: Numbers = counts * unsigned.type(meta["by"]) + unsigned.type(meta["base"] % (1 << 8 * dtype.itemsize))
        return values.view(dtype)
