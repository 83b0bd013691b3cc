"""The application of LAAR's Fig. 1 as a pipeline: two PEs in a row that take the same time for every tuple.

Tuples come by the clock, whoever reads them. A PE spends CPU time on each, by the clock of its thread, so that it takes
longer where others want the same core. The second one keeps a total, so that what is lost or doubled can be seen.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import floor
from pathlib import Path
from typing import Any

import polars as pl

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.offsets import cut_evenly
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast_lab.experiment.tide import Tide

__all__ = ["PIPELINE", "SOURCE", "Example", "Tuples", "example_pipeline", "write_example"]

PIPELINE, SOURCE = "pipeline", "tuples"
_SCHEMA = pl.Schema({"number": pl.Int64, "due": pl.Float64})
_STATE = {"total": pl.Int64}


@dataclass(frozen=True, slots=True)
class Example:
    """`steps` are seconds and tuples per second; `cost` is CPU seconds per tuple of either PE. The first tuple is due
    when the pipeline begins, at `begin` where that is given."""

    output: str
    steps: tuple[tuple[float, float], ...]
    cost: float
    tick: float = 0.5
    completeness: float | None = None
    begin: float | None = None

    @property
    def tide(self) -> Tide:
        return Tide(tuple((seconds, rate) for seconds, rate in self.steps))

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Tuples(Source):
    """Numbers, as many as are due, until the steps are over."""

    bounded = True
    keeps = True
    schema = _SCHEMA

    def __init__(self, example: Example, clock: Callable[[], float] = time.time) -> None:
        self.example, self._clock = example, clock

    def __getstate__(self) -> dict[str, Any]:
        return {"example": self.example}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.example, self._clock = state["example"], time.time

    def start(self) -> Position:
        return {"offset": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        start, now = int(position["offset"]), self._clock()
        since = float(position.get("since", self.example.begin or now))
        tide = self.example.tide
        most = floor(tide.until(tide.period - 1e-9) + 1e-6)
        stop = min(self._due(since), start + max(1, rows))
        if stop <= start:
            return Take((), position, start >= most)
        slices = tuple(
            Slice(base=low, rows=high - low, where={"start": low, "stop": high})
            for low, high in cut_evenly(start, stop, pieces)
        )
        return Take(slices, {"offset": stop, "since": since}, stop >= most)

    def lag(self, position: Position) -> int | None:
        """Tuples that are due."""
        if "since" not in position:
            return 0
        return self._due(float(position["since"])) - int(position["offset"])

    def _due(self, since: float) -> int:
        tide, tick = self.example.tide, self.example.tick
        most = floor(tide.until(tide.period - 1e-9) + 1e-6)
        due = floor(tide.until(min(tide.period - 1e-9, floor((self._clock() - since) / tick) * tick))) + 1
        return min(due, most)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        numbers = range(int(piece.where["start"]), int(piece.where["stop"]))
        yield Chunk(pl.DataFrame({"number": numbers, "due": [time.time()] * len(numbers)}, schema=_SCHEMA))

    def describe(self) -> str:
        return " and ".join(f"{rate:g} tuples/s" for rate in sorted({rate for _, rate in self.example.steps}))


def _spend(seconds: float) -> None:
    """Use so much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def example_pipeline(example: Example) -> Pipeline:
    cost = example.cost

    def work(rows: pl.DataFrame) -> pl.DataFrame:
        _spend(cost * rows.height)
        return rows

    def total(rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
        _spend(cost * rows.height)
        before = int(state["total"].sum()) if state.height else 0
        after = before + int(rows["number"].sum())
        upserts = pl.DataFrame({"key": [0], "total": [after]}, schema={"key": pl.Int64, "total": pl.Int64})
        return Step(upserts=upserts, output=rows.select("number", total=pl.lit(after, pl.Int64)))

    guarantee = None if example.completeness is None else Guarantee(completeness=example.completeness)
    pipeline = Pipeline(PIPELINE, guarantee=guarantee) if guarantee is not None else Pipeline(PIPELINE)
    first = (
        pipeline.source(SOURCE, Tuples(example))
        .select("number")
        .map_batches(work, schema={"number": pl.Int64}, name="pe1")
    )
    kept = first.persist("between", push_up=False).with_columns(key=pl.lit(0, pl.Int64)).key_by("key")
    kept.process(
        total, state=_STATE, output={"number": pl.Int64, "total": pl.Int64}, keep_forever=True, name="pe2"
    ).sink("out", parquet(example.output))
    return pipeline


def write_example(place: Path, example: Example) -> Path:
    """The file that hosts load."""
    place.write_text(
        "from holdfast_lab.experiment.laar.example_pipeline import pipeline_of\n\n"
        f"pipeline = pipeline_of({example.to_json()!r})\n"
    )
    return place


def pipeline_of(text: str) -> Pipeline:
    """The pipeline of settings in JSON."""
    return example_pipeline(Example(**json.loads(text)))
