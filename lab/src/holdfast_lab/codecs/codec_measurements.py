"""Measurements of the encodings: the paper's Fig. 6 (ratio against speed) and Fig. 12 (the stream changes).

Ratios are to the bytes of the plain Arrow column, and so are the GB/s. Times are CPU times of one thread. The machine's
load is in every row all the same: it takes cache and memory bandwidth, so speeds are to be compared within one run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from holdfast.pstream.codecs.bits import BitPack, VarByte
from holdfast.pstream.codecs.chooser import Chooser
from holdfast.pstream.codecs.dictionary import Dictionary
from holdfast.pstream.codecs.encoding import Encoding
from holdfast.pstream.codecs.floats import ByteSplit, Decimal, Scaled
from holdfast.pstream.codecs.frame import Encoded, Lossy, decode_frame, encode_frame
from holdfast.pstream.codecs.heavy import ByteCodec, Pco, TextBytes
from holdfast.pstream.codecs.narrow import BaseDelta, Narrow, Plain, Zigzag
from holdfast.pstream.codecs.sequence import Delta, RunLength, Xor
from holdfast_lab.codecs.distributions import DISTRIBUTIONS, column

__all__ = ["FIXED", "StreamReplay", "encodings_for", "measure", "replay_change"]

_LOSSY = Lossy("value", 0.005)
_BYTE_CODECS: list[Encoding] = [ByteCodec("lz4"), ByteCodec("snappy"), ByteCodec("zstd")]
_INTEGERS: list[Encoding] = [
    Plain(),
    Narrow(),
    BaseDelta(),
    BaseDelta(BitPack()),
    BaseDelta(VarByte()),
    BaseDelta(ByteCodec("lz4")),
    BaseDelta(ByteCodec("zstd")),
    Delta(),
    Delta(BaseDelta(BitPack())),
    Delta(Delta()),
    Delta(Delta(Zigzag(BitPack()))),
    RunLength(),
    RunLength(BaseDelta(BitPack()), BitPack()),
    RunLength(Delta(BaseDelta(BitPack())), BitPack()),
    Dictionary(),
    Dictionary(BitPack()),
    *_BYTE_CODECS,
    Pco(0),
    Pco(4),
]
_FLOATS: list[Encoding] = [
    Plain(),
    Decimal(),
    Decimal(BaseDelta(BitPack())),
    Decimal(Delta(Zigzag(BitPack()))),
    Scaled(_LOSSY.max_error),
    Scaled(_LOSSY.max_error, BaseDelta(BitPack())),
    Scaled(_LOSSY.max_error, Delta(Zigzag(BitPack()))),
    Xor(BitPack()),
    Xor(ByteSplit()),
    Xor(ByteSplit(ByteCodec("lz4"))),
    ByteSplit(ByteCodec("lz4")),
    ByteSplit(ByteCodec("zstd")),
    Dictionary(),
    *_BYTE_CODECS,
    Pco(0),
    Pco(4),
]
_STRINGS: list[Encoding] = [
    Plain(),
    Dictionary(),
    Dictionary(BitPack()),
    TextBytes(Plain()),
    *(TextBytes(codec) for codec in _BYTE_CODECS),
]


def encodings_for(dtype: pl.DataType) -> list[Encoding]:
    """All that is measured on a column of the type."""
    if dtype == pl.String:
        return _STRINGS
    return _FLOATS if dtype.is_float() else _INTEGERS


def measure(rows: int = 1 << 20, seconds: float = 60.0, seed: int = 0) -> list[dict[str, Any]]:
    """A row per distribution and encoding: ratio, GB/s in and out. Encodings that do not suit the data are left out."""
    columns = {name: column(name, rows, seed).to_frame() for name in DISTRIBUTIONS}
    pairs = [(name, one) for name, frame in columns.items() for one in encodings_for(frame.schema["value"])]
    share = seconds / len(pairs) / 2
    found = (_measure(name, columns[name], encoding, share) for name, encoding in pairs)
    return [row for row in found if row is not None]


def _measure(name: str, frame: pl.DataFrame, encoding: Encoding, seconds: float) -> dict[str, Any] | None:
    plan = {"value": encoding}
    lossy = [_LOSSY] if encoding.is_lossy() else []
    encoded = encode_frame(frame, plan, lossy)
    if encoded.fallbacks:
        return None
    plain = encode_frame(frame, {"value": Plain()}).nbytes
    into = _fastest(lambda: encode_frame(frame, plan, lossy), seconds)
    out = _fastest(lambda: decode_frame(encoded), seconds)
    return {
        "data": name,
        "encoding": str(encoding),
        "lossy": encoding.is_lossy(),
        "ratio": plain / max(1, encoded.nbytes),
        "encode_gb_s": plain / into / 1e9,
        "decode_gb_s": plain / out / 1e9,
        "load": os.getloadavg()[0],
    }


def _fastest(act: Callable[[], object], seconds: float) -> float:
    """The best time of as many tries as fit, at least two."""
    until = time.perf_counter() + seconds
    best, tries = float("inf"), 0
    while tries < 2 or time.perf_counter() < until:
        started = time.thread_time()
        act()
        best = min(best, time.thread_time() - started)
        tries += 1
    return best


def _changing_stream(batches: int, rows: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Readings of machines: at half time, values that were small and random become long runs of wide numbers."""
    random = np.random.default_rng(0)
    clock = pl.Series("time", 1_000 * np.arange(rows))
    for batch in range(batches):
        times = (clock + batch * rows * 1_000).cast(pl.Datetime("us"))
        if batch < batches // 2:
            values = [random.integers(0, 200, rows), random.integers(0, 4_000, rows)]
            yield "before", pl.DataFrame([times, *(pl.Series(f"value{i}", v) for i, v in enumerate(values))])
        else:
            wide = np.repeat(random.integers(0, 1 << 40, rows // 100 + 1), 100)[:rows]
            climbing = np.cumsum(random.integers(0, 30, rows)) + (batch << 36)
            values = [wide, climbing]
            yield "after", pl.DataFrame([times, *(pl.Series(f"value{i}", v) for i, v in enumerate(values))])


FIXED: dict[str, Encoding] = {
    "plain": Plain(),
    "base-delta": BaseDelta(),
    "bit-pack": BaseDelta(BitPack()),
    "delta": Delta(),
    "delta-of-delta": Delta(Delta()),
    "run-length": RunLength(),
    "dictionary": Dictionary(),
    "snappy": ByteCodec("snappy"),
    "lz4": ByteCodec("lz4"),
    "zstd": ByteCodec("zstd"),
    "pcodec": Pco(0),
}
"""One encoding for all columns; columns it does not suit get the safe one."""


@dataclass(slots=True)
class StreamReplay:
    """A stream under one scheme, batch by batch: adaptive if `fixed` is None. Totals are kept by part of the stream.

    `write` gets what was encoded, e.g. to put it on a disk, and is part of `wall_seconds`. `seconds` does without it:
    CPU time for encoding and choosing, plus the bytes at the bandwidth.
    """

    scheme: str
    bandwidth: float
    fixed: Encoding | None = None
    write: Callable[[Encoded], object] = lambda _: None
    batches: int = 0
    switches: list[int] = field(default_factory=list)
    fallbacks: int = 0
    choosing_seconds: float = 0.0
    totals: dict[str, dict[str, float]] = field(default_factory=dict)
    chooser: Chooser = field(init=False)

    def __post_init__(self) -> None:
        self.chooser = Chooser(self.bandwidth)

    def step(self, part: str, frame: pl.DataFrame) -> float:
        """Encode, write, and if adaptive, learn; how long it took on the wall."""
        began, started = time.perf_counter(), time.thread_time()
        plan = self.chooser.plan() if self.fixed is None else dict.fromkeys(frame.columns, self.fixed)
        encoded = encode_frame(frame, plan)
        done = time.thread_time()
        self.write(encoded)
        learning = time.thread_time()
        if self.fixed is None and self.chooser.observe(frame, encoded):
            self.switches.append(self.batches)
        chose = time.thread_time() - learning
        wall = time.perf_counter() - began
        self.batches += 1
        self.choosing_seconds += chose
        self.fallbacks += len(encoded.fallbacks)
        self._add(
            part,
            rows=frame.height,
            bytes=encoded.nbytes,
            encode_seconds=done - started,
            seconds=done - started + chose + encoded.nbytes / self.bandwidth,
            wall_seconds=wall,
        )
        return wall

    def _add(self, part: str, **amounts: float) -> None:
        totals = self.totals.setdefault(part, dict.fromkeys(amounts, 0))
        for name, amount in amounts.items():
            totals[name] += amount

    def row(self) -> dict[str, Any]:
        told = {"scheme": self.scheme, "switches": self.switches, "fallbacks": self.fallbacks}
        by_part = {f"{name}_{part}": value for part, totals in self.totals.items() for name, value in totals.items()}
        return {**told, "choosing_seconds": self.choosing_seconds, **by_part}


def replay_change(batches: int = 20, rows: int = 1 << 18, bandwidth: float = 500e6) -> list[dict[str, Any]]:
    """Fig. 12: adaptive against each fixed scheme, before and after the change of the data.

    `switches` says at which batches the adaptive plan changed.
    """
    stream = list(_changing_stream(batches, rows))
    Chooser(bandwidth).observe(stream[0][1])  # calibrates, which a process does once
    Chooser(bandwidth).observe(stream[-1][1])
    schemes: dict[str, Encoding | None] = {"adaptive": None, **FIXED}
    runs = [StreamReplay(name, bandwidth, fixed) for name, fixed in schemes.items()]
    for part, frame in stream:
        # All schemes on a batch before the next batch: what else the machine does then is in all of them alike.
        for run in runs:
            run.step(part, frame)
    return [run.row() for run in runs]
