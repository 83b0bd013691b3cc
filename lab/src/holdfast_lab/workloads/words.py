"""The windowed word count of SEEP: fragments of sentences, 140 bytes each, split into words that are counted over 30 s.

Fragments are a pure function of their offsets, so the source can be read again. Event time goes by the offset and the
rate: rows that arrive at this rate carry the seconds since the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.connect.base import Sink, Source
from holdfast.connect.sources.generator import GeneratorSource, generator
from holdfast.graph.aggregates.sums import count
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.stream import Stream
from holdfast.graph.windows import sliding

__all__ = ["COUNTS", "SPLIT", "WORDS_PER_FRAGMENT", "Fragments", "fragments", "word_count", "word_totals"]

WORDS_PER_FRAGMENT = 20
SPLIT, COUNTS = "split", "counts"
"""The names of the p-stream behind the splitter and of the sink: those of the two fragments of a cut pipeline."""

_LETTERS = 6
_WORD = _LETTERS + 1
_FRAGMENT = WORDS_PER_FRAGMENT * _WORD
_SCHEMA = {"time": pl.Int64, "text": pl.String}


@dataclass(frozen=True)
class Fragments:
    """Makes the rows start .. stop-1: words uniform over a vocabulary, `time` in milliseconds.

    With `listed` the first rows name each word once, all at time 0, so that a dictionary of them is full at once.
    """

    words: int
    rate: float
    seed: int = 0
    listed: bool = False

    @property
    def listing(self) -> int:
        """How many rows name all words."""
        return -(-self.words // WORDS_PER_FRAGMENT) if self.listed else 0

    def __call__(self, start: int, stop: int) -> pl.DataFrame:
        places = np.arange(start * WORDS_PER_FRAGMENT, stop * WORDS_PER_FRAGMENT, dtype=np.uint64)
        numbers = (_mixed(places, self.seed) >> np.uint64(32)) * np.uint64(self.words) >> np.uint64(32)
        first = max(0, min(stop, self.listing) - start) * WORDS_PER_FRAGMENT
        numbers[:first] = places[:first] % np.uint64(self.words)
        times = np.maximum(np.arange(start, stop) - self.listing, 0) * 1_000 / self.rate
        return pl.DataFrame({"time": times.astype(np.int64), "text": _text(numbers, self.words)})


def fragments(made: Fragments, rows: int | None = None) -> GeneratorSource:
    """A source of fragments, without an end if `rows` is None."""
    return generator(made, _SCHEMA, rows=rows)


def _mixed(places: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A random number for each place (splitmix64)."""
    offset = np.uint64(seed * 0x632BE59BD9B4E019 % (1 << 64))
    mixed = (places + offset) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


@lru_cache(maxsize=4)
def _spelled(words: int) -> NDArray[np.void]:
    """Each word of a vocabulary with six letters and a space."""
    letters = np.full((words, _WORD), ord(" "), dtype=np.uint8)
    left = np.arange(words)
    for place in reversed(range(_LETTERS)):
        letters[:, place] = ord("a") + left % 26
        left //= 26
    return letters.view(f"V{_WORD}").reshape(words)


def _text(numbers: NDArray[np.uint64], words: int) -> pl.Series:
    rows = len(numbers) // WORDS_PER_FRAGMENT
    ends = pa.py_buffer(np.arange(rows + 1, dtype=np.int64) * _FRAGMENT)
    letters = pa.py_buffer(np.take(_spelled(words), numbers.astype(np.int64)))
    return pl.Series("text", pa.Array.from_buffers(pa.large_utf8(), rows, [None, ends, letters]))


def _split(pipeline: Pipeline, source: Source) -> Stream:
    text = pipeline.source("fragments", source, event_time="time", time_unit="ms")
    words = pl.col("text").str.strip_chars_end(" ").str.split(" ")
    return text.select("time", word=words).named("splitter").explode("word", name="words")


def word_count(
    source: Source, sink: Sink, *, cut: bool, window: str = "30s", slide: str = "1s", pipeline_name: str = "words"
) -> Pipeline:
    """How often each word came in the window. With `cut` the words go through a p-stream behind the splitter."""
    pipeline = Pipeline(pipeline_name)
    words = _split(pipeline, source)
    if cut:
        words = words.persist(SPLIT, push_up=False)
    words.key_by("word").window(sliding(window, slide), name="counter").agg(n=count()).sink(COUNTS, sink)
    return pipeline


def word_totals(source: Source, sink: Sink, *, pipeline_name: str = "totals") -> Pipeline:
    """How often each word came since the beginning: a dictionary that has exactly the words there are."""
    pipeline = Pipeline(pipeline_name)
    totals = _split(pipeline, source).key_by("word").process(
        _add, state={"n": pl.Int64}, output={"word": pl.String, "n": pl.Int64}, keep_forever=True, name="dictionary"
    )  # fmt: skip
    totals.sink("totals", sink)
    return pipeline


def _add(rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
    added = rows.group_by("word").agg(n=pl.len().cast(pl.Int64))
    known = state.select("word", before="n")
    totals = added.join(known, on="word", how="left").select("word", n=pl.col("n") + pl.col("before").fill_null(0))
    return Step(upserts=totals, output=totals)
