"""The pipeline that the experiments on real hosts keep alive: visits per user, at a rate that rises and falls.

Visits come as compressed lines of JSON, in blocks as a broker would send them, with `others` fields beside those that
are asked for, as lines of a log have them. So reading them takes work, which a secondary that receives its input has
done before it is needed. Rows are there by the clock, whoever reads them, and are taken at most once per tick: between
two ticks a host that keeps up has nothing to do.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from holdfast.connect.base import Chunk, Position, Sink, Slice, Source, Take
from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.offsets import cut_evenly
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast_lab.experiment.tide import Tide

__all__ = [
    "BLOCK_ROWS",
    "PIPELINE",
    "TOLD_EVERY",
    "TidalSource",
    "Visits",
    "read_block",
    "visits_pipeline",
    "write_blocks",
    "write_pipeline",
]

PIPELINE = "visits"
BLOCK_ROWS = 1_000
_BLOCKS = 200
TOLD_EVERY = 100
_SCHEMA = pl.Schema({"user": pl.Int64, "page": pl.String, "bytes": pl.Int64})
_STATE = {"visits": pl.Int64, "bytes": pl.Int64, "page": pl.String}


@dataclass(frozen=True, slots=True)
class Visits:
    """What is run. With every round through the blocks `fresh` users come who were not there before."""

    blocks: str
    output: str
    steps: tuple[tuple[float, float], ...]
    tick: float = 0.5
    fresh: int = 0
    recovery: str | None = None
    padding: int = 0
    """Bytes of state per user beside the totals."""

    @property
    def tide(self) -> Tide:
        return Tide(tuple((seconds, rate) for seconds, rate in self.steps))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class TidalSource(Source):
    """The rows of the blocks, repeated without end, as the tide brings them."""

    bounded = False
    keeps = True
    schema = _SCHEMA

    def __init__(
        self, blocks: Path, tide: Tide, tick: float, fresh: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self.blocks, self.tide, self.tick, self.fresh = blocks, tide, tick, fresh
        self._clock = clock

    def __getstate__(self) -> dict[str, Any]:
        return {"blocks": self.blocks, "tide": self.tide, "tick": self.tick, "fresh": self.fresh}

    def start(self) -> Position:
        return {"offset": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        start, now = int(position["offset"]), self._clock()
        since = float(position.get("since", now))
        # The first row is due at once, so that the first take has one, and its position holds the beginning.
        stop = min(self._due(now - since), start + max(1, rows))
        if stop <= start:
            return Take((), position)
        slices = tuple(
            Slice(base=low, rows=high - low, where={"start": low, "stop": high})
            for low, high in cut_evenly(start, stop, pieces)
        )
        return Take(slices, {"offset": stop, "since": since})

    def _due(self, at: float) -> int:
        return floor(self.tide.until(floor(at / self.tick) * self.tick)) + 1

    def read(self, piece: Slice) -> Iterator[Chunk]:
        start, stop = int(piece.where["start"]), int(piece.where["stop"])
        for number in range(start // BLOCK_ROWS, -(-stop // BLOCK_ROWS)):
            first = number * BLOCK_ROWS
            low, high = max(start, first), min(stop, first + BLOCK_ROWS)
            visits = read_block(self.blocks, number).slice(low - first, high - low)
            newer = number // _BLOCKS * self.fresh
            yield Chunk(visits.with_columns(pl.col("user") + newer) if newer else visits)

    def lag(self, position: Position) -> int | None:
        since = position.get("since")
        return 0 if since is None else max(0, self._due(self._clock() - float(since)) - int(position["offset"]))

    def describe(self) -> str:
        rates = [rate for _, rate in self.tide.steps]
        return f"{min(rates):,.0f} to {max(rates):,.0f} visits/s"


def read_block(blocks: Path, number: int) -> pl.DataFrame:
    """A block of the endless stream."""
    packed = (blocks / f"{number % _BLOCKS}.json.z").read_bytes()
    return pl.read_ndjson(zlib.decompress(packed), schema=_SCHEMA)


def write_blocks(place: Path, users: int, seed: int, others: int = 0) -> None:
    """Make the input: each user visits a page now and then. Of every visit `others` more fields are told, of 24
    characters each."""
    place.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for number in range(_BLOCKS):
        user = random.integers(0, users, BLOCK_ROWS)
        frame = pl.DataFrame(
            {
                "user": user,
                "page": [
                    f"/shop/{one % 97}/item/{one:08d}?from=search" for one in random.integers(0, 10**8, BLOCK_ROWS)
                ],
                "bytes": random.integers(500, 200_000, BLOCK_ROWS),
                **{f"field{place:02d}": _words(random) for place in range(others)},
            }
        )
        (place / f"{number}.json.z").write_bytes(zlib.compress(frame.write_ndjson().encode(), 1))


def _words(random: np.random.Generator) -> list[str]:
    return [f"{one:024x}" for one in random.integers(0, 2**62, BLOCK_ROWS)]


def visits_pipeline(asked: Visits, sink: Sink | None = None) -> Pipeline:
    """How often each user came, how much they got and what they saw last; told whenever the visits are so many more."""
    pipeline = Pipeline(PIPELINE, guarantee=None if asked.recovery is None else Guarantee(asked.recovery))
    source = TidalSource(Path(asked.blocks), asked.tide, asked.tick, asked.fresh)
    totals = (
        pipeline.source("log", source)
        .key_by("user")
        .process(
            partial(_add, padding=asked.padding),
            state=_STATE,
            output={"user": pl.Int64, "visits": pl.Int64, "bytes": pl.Int64},
            keep_forever=True,
            name="totals",
        )
    )
    totals.sink("told", sink or parquet(asked.output))
    return pipeline


def _add(rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext, padding: int = 0) -> Step:
    seen = rows.group_by("user").agg(
        visits=pl.len().cast(pl.Int64), bytes=pl.col("bytes").sum(), page=pl.col("page").last() + padding * "."
    )
    before = state.select("user", old_visits="visits", old_bytes="bytes")
    joined = seen.join(before, on="user", how="left").with_columns(pl.col("old_visits", "old_bytes").fill_null(0))
    totals = joined.select(
        "user", visits=pl.col("visits") + pl.col("old_visits"), bytes=pl.col("bytes") + pl.col("old_bytes"), page="page"
    )
    told = pl.col("visits") // TOLD_EVERY > pl.col("old_visits") // TOLD_EVERY
    output = totals.with_columns(joined["old_visits"]).filter(told).select("user", "visits", "bytes")
    return Step(upserts=totals, output=output)


def write_pipeline(place: Path, asked: Visits) -> Path:
    """The file that hosts load."""
    place.write_text(
        "from holdfast_lab.experiment.streammine3g.tidal_visits import pipeline_of\n\n"
        f"pipeline = pipeline_of({asked.to_json()!r})\n"
    )
    return place


def pipeline_of(text: str) -> Pipeline:
    """The pipeline of settings in JSON."""
    return visits_pipeline(Visits(**json.loads(text)))
