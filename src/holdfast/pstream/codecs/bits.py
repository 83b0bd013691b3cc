"""Encodings below the byte: bit packing by blocks with patched exceptions, and variable byte.

Bit packing stands where the paper has Simple-8b. A block of 1024 values has one width; blocks of equal width are
packed together. The values of a group are laid out as rows, one row per position inside a word, so that packing is a
few shifts over long rows and no loop over values: `word[lane]` holds the values `lane`, `lane + lanes`, ...
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.pstream.codecs.encoding import Encoding, EncodingMisfitError, Meta, Numbers, Parts, as_bits, register

__all__ = ["BitPack", "VarByte"]

BLOCK = 1024
LANES = 64  # what is packed together is a multiple of the longest word
_SAMPLE = 4096
_POWERS = np.left_shift(np.uint64(1), np.arange(64, dtype=np.uint64))


def _bit_lengths(values: Numbers) -> Numbers:
    return np.searchsorted(_POWERS, values.astype(np.uint64, copy=False), side="right")


def _lane_bits(width: int) -> int:
    return next(bits for bits in (8, 16, 32, 64) if width <= bits)


def _pack(values: Numbers, width: int) -> Numbers:
    """A whole number of blocks as `width` bits each; higher bits of the values are cut off."""
    bits = _lane_bits(width)
    lane = np.dtype(f"<u{bits // 8}")
    rows = values.astype(lane, copy=False).reshape(bits, -1)
    if width == bits:
        return rows.ravel()
    rows = rows & lane.type((1 << width) - 1)
    words = np.zeros((width, rows.shape[1]), lane)
    for place in range(bits):
        word, shift = divmod(place * width, bits)
        words[word] |= rows[place] << lane.type(shift)
        if shift + width > bits:
            words[word + 1] |= rows[place] >> lane.type(bits - shift)
    return words.ravel()


def _unpack(words: Numbers, width: int, count: int) -> Numbers:
    bits = _lane_bits(width)
    lane = np.dtype(f"<u{bits // 8}")
    if width == 0:
        return np.zeros(count, lane)
    if width == bits:
        return words
    words = words.reshape(width, -1)
    rows = np.empty((bits, words.shape[1]), lane)
    for place in range(bits):
        word, shift = divmod(place * width, bits)
        np.right_shift(words[word], lane.type(shift), out=rows[place])
        if shift + width > bits:
            rows[place] |= words[word + 1] << lane.type(bits - shift)
    rows &= lane.type((1 << width) - 1)
    return rows.ravel()


def _padded(values: Numbers, multiple: int) -> Numbers:
    if values.size % multiple == 0:
        return values
    padded = np.zeros(-(-values.size // multiple) * multiple, values.dtype)
    padded[: values.size] = values
    return padded


def _best_width(values: Numbers) -> int:
    """The width of least total bits, when a value that is wider costs itself and a position."""
    sample = values[:: max(1, values.size // _SAMPLE)]
    counts = np.bincount(_bit_lengths(sample), minlength=65)
    wider = sample.size - np.cumsum(counts)
    cost = np.arange(65) * sample.size + wider * (32 + 8 * values.dtype.itemsize)
    return int(cost.argmin())


@register("bit-pack")
@dataclass(frozen=True, slots=True)
class BitPack(Encoding):
    """Unsigned values in as few bits as the block needs; rare wide ones are kept apart and patched in."""

    def encode(self, values: Numbers, out: Parts) -> Meta:
        bits = as_bits(values)
        widths = self._widths(bits)
        cap = min(_best_width(bits), int(widths.max()))
        exceptions = np.flatnonzero(bits >> bits.dtype.type(cap)) if cap < int(widths.max()) else np.empty(0, np.int64)
        meta: Meta = {"n": bits.size}
        if 0 < exceptions.size <= bits.size // 8:
            widths = np.minimum(widths, cap)
            meta["at"] = out.add(exceptions.astype(np.uint32 if bits.size < 1 << 32 else np.uint64))
            meta["are"] = out.add(bits[exceptions])
        if int(widths.max()) * widths.size <= 1.05 * int(widths.sum()) + 1:
            widths[:] = widths.max()
        return {**meta, **self._groups(bits, widths, out)}

    @staticmethod
    def _widths(bits: Numbers) -> Numbers:
        whole = bits.size // BLOCK * BLOCK
        largest = bits[:whole].reshape(-1, BLOCK).max(axis=1)
        if whole < bits.size:
            largest = np.append(largest, bits[whole:].max())
        return _bit_lengths(largest).astype(np.uint8)

    @staticmethod
    def _groups(bits: Numbers, widths: Numbers, out: Parts) -> Meta:
        distinct = [int(width) for width in np.flatnonzero(np.bincount(widths))]
        if len(distinct) == 1:
            width = distinct[0]
            return {"groups": [[width, out.add(_pack(_padded(bits, LANES), width)) if width else None]]}
        meta: Meta = {"widths": out.add(widths)}
        blocks = _padded(bits, BLOCK).reshape(-1, BLOCK)
        chosen = [(width, blocks[widths == width]) for width in distinct]
        return {**meta, "groups": [[width, out.add(_pack(group, width)) if width else None] for width, group in chosen]}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        values = cls._unpacked(meta, parts)
        if "at" in meta:
            wide = parts.numbers(meta["are"])
            values = values.astype(wide.dtype)
            values[parts.numbers(meta["at"])] = wide
        return values

    @staticmethod
    def _unpacked(meta: Meta, parts: Parts) -> Numbers:
        nothing = np.empty(0, np.uint8)
        groups = [(width, nothing if part is None else parts.numbers(part)) for width, part in meta["groups"]]
        if len(groups) == 1:
            width, words = groups[0]
            return _unpack(words, width, -(-meta["n"] // LANES) * LANES)[: meta["n"]]
        widths = parts.numbers(meta["widths"])
        values = np.empty(widths.size * BLOCK, f"<u{_lane_bits(max(width for width, _ in groups)) // 8}")
        blocks = values.reshape(-1, BLOCK)
        for width, words in groups:
            here = widths == width
            blocks[here] = _unpack(words, width, int(here.sum()) * BLOCK).reshape(-1, BLOCK)
        return values[: meta["n"]]


@register("var-byte")
@dataclass(frozen=True, slots=True)
class VarByte(Encoding):
    """Seven bits per byte, the eighth says that more follow."""

    def encode(self, values: Numbers, out: Parts) -> Meta:
        bits = as_bits(values)
        steps = -(-8 * bits.dtype.itemsize // 7)
        sizes = np.ones(bits.size, np.int64)
        for step in range(1, steps):
            sizes += bits >= bits.dtype.type(1 << (7 * step)) if 7 * step < 8 * bits.dtype.itemsize else 0
        ends = np.cumsum(sizes)
        starts = ends - sizes
        stream = np.empty(int(ends[-1]), np.uint8)
        if stream.size >= values.nbytes:
            raise EncodingMisfitError("variable byte does not make the values smaller")
        for step in range(int(sizes.max())):
            long_enough = sizes > step
            digits = (bits[long_enough] >> bits.dtype.type(7 * step)).astype(np.uint8) & np.uint8(127)
            more = (sizes[long_enough] > step + 1).astype(np.uint8) << np.uint8(7)
            stream[starts[long_enough] + step] = digits | more
        return {"t": values.dtype.str, "p": out.add(stream)}

    @classmethod
    def decode(cls, meta: Meta, parts: Parts) -> Numbers:
        stream = parts.numbers(meta["p"])
        ends = np.flatnonzero(stream < 128) + 1
        sizes = np.diff(ends, prepend=0)
        dtype = np.dtype(meta["t"])
        values = np.zeros(ends.size, f"<u{dtype.itemsize}")
        starts = ends - sizes
        for step in range(int(sizes.max())):
            long_enough = sizes > step
            digits = (stream[starts[long_enough] + step] & np.uint8(127)).astype(values.dtype)
            values[long_enough] |= digits << values.dtype.type(7 * step)
        return values.view(dtype)
