"""The heavy end of the menu: byte codecs (lz4, zstd, snappy), pcodec for numbers, and text as lengths and bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa
from pcodec import ChunkConfig, standalone  # type: ignore[import-untyped]

from holdfast.pstream.codecs.encoding import (
    Encoding,
    Meta,
    Numbers,
    Parts,
    decode_numbers,
    encode_numbers,
    register,
)
from holdfast.pstream.codecs.narrow import Narrow

__all__ = ["ByteCodec", "Pco", "TextBytes"]

_CODECS = {"lz4": "lz4_raw", "zstd": "zstd", "snappy": "snappy"}


@register("bytes")
@dataclass(frozen=True, slots=True)
class ByteCodec(Encoding):
    """The bytes of the values through a general compressor."""

    codec: Literal["lz4", "zstd", "snappy"] = "lz4"

    def encode(self, values: Numbers, out: Parts) -> Meta:
        data = pa.Codec(_CODECS[self.codec]).compress(pa.py_buffer(np.ascontiguousarray(values)))
        stored = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
        return {"c": self.codec, "t": values.dtype.str, "n": values.size, "p": out.add(stored)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        dtype = np.dtype(meta["t"])
        data = parts.numbers(meta["p"])
        plain = pa.Codec(_CODECS[meta["c"]]).decompress(pa.py_buffer(data), meta["n"] * dtype.itemsize)
        return np.frombuffer(plain, dtype)


@register("pco")
@dataclass(frozen=True, slots=True)
class Pco(Encoding):
    """pcodec: finds deltas, decimals and multiples by itself; the best ratio on numbers, the most time to write."""

    level: int = 0

    def encode(self, values: Numbers, out: Parts) -> Meta:
        config = ChunkConfig(compression_level=self.level, enable_8_bit=True)
        data = standalone.simple_compress(np.ascontiguousarray(values), config)
        return {"p": out.add(np.frombuffer(data, np.uint8))}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        values: Numbers = standalone.simple_decompress(parts.numbers(meta["p"]).tobytes())
        return values


@register("text")
@dataclass(frozen=True, slots=True)
class TextBytes(Encoding):
    """Text as a stream of lengths and a stream of bytes."""

    data: Encoding = field(default_factory=ByteCodec)
    lengths: Encoding = field(default_factory=Narrow)

    def encode_text(self, values: pl.Series, out: Parts) -> Meta:
        array = values.rechunk().to_arrow()
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.empty(0, np.uint8)
        return {
            "t": "string" if values.dtype == pl.String else "binary",
            "lengths": encode_numbers(self.lengths, np.diff(ends), out),
            "data": encode_numbers(self.data, text, out),
        }

    @classmethod
    def decode_text(cls, meta: Meta, parts: Parts) -> pl.Series:
        lengths = decode_numbers(meta["lengths"], parts)
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.ascontiguousarray(decode_numbers(meta["data"], parts))
        kind = pa.large_string() if meta["t"] == "string" else pa.large_binary()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pl.Series(pa.Array.from_buffers(kind, lengths.size, buffers))
