"""The word count: fragments that are a function of their offsets, and counts against an oracle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast_lab.workloads.words import Fragments, fragments, word_count, word_totals


def test_fragments_have_140_bytes_and_do_not_depend_on_how_they_are_cut() -> None:
    made = Fragments(words=500, rate=100.0, seed=3)
    whole = made(0, 1_000)
    assert pl.concat([made(0, 1), made(1, 700), made(700, 1_000)]).equals(whole)
    assert whole["text"].str.len_bytes().unique().to_list() == [140]
    words = [text.split() for text in whole["text"]]
    assert {len(line) for line in words} == {20}
    assert len({word for line in words for word in line}) == 500
    assert not Fragments(500, 100.0, seed=4)(0, 10).equals(whole.head(10))


def test_event_time_goes_by_the_rate() -> None:
    assert Fragments(words=10, rate=400.0)(398, 402)["time"].to_list() == [995, 997, 1_000, 1_002]


@pytest.mark.parametrize("words", [7, 20, 1_001])
def test_a_listing_names_each_word_before_time_goes_on(words: int) -> None:
    made = Fragments(words=words, rate=10.0, listed=True)
    rows = made(0, made.listing + 3)
    first = rows.head(made.listing)
    assert len({word for text in first["text"] for word in text.split()}) == words
    assert first["time"].to_list() == [0] * made.listing
    assert rows["time"].to_list()[made.listing :] == [0, 100, 200]
    assert pl.concat([made(0, 1), made(1, made.listing + 3)]).equals(rows)


def counted(rows: pl.DataFrame, length: int, slide: int) -> set[tuple[object, ...]]:
    """The oracle: each window, one by one."""
    words = [(time, word) for time, text in rows.rows() for word in text.split()]
    found = set()
    for start in range(slide - length, rows["time"].to_list()[-1] + 1, slide):
        inside = Counter(word for time, word in words if start <= time < start + length)
        found |= {(start, start + length, word, n) for word, n in inside.items()}
    return found


@pytest.mark.spark
@pytest.mark.parametrize("cut", [False, True], ids=["one piece", "cut"])
def test_words_are_counted_over_sliding_windows(cut: bool, spark: SparkSession, tmp_path: Path) -> None:
    made = Fragments(words=30, rate=50.0, seed=1)
    pipeline = word_count(fragments(made, 400), hf.sink.parquet(tmp_path / "out"), cut=cut, window="4s", slide="2s")
    hf.run(pipeline, spark=spark, store=tmp_path / "store", least_rows=100, most_rows=100)
    rows = hf.read_output(tmp_path / "out", "parquet")
    named = rows.select("window_start", "window_end", "word", "n").rows()
    assert len(named) == len(set(named))
    assert set(named) == counted(made(0, 400), 4_000, 2_000)


@pytest.mark.spark
def test_a_dictionary_has_the_words_there_are(spark: SparkSession, tmp_path: Path) -> None:
    made = Fragments(words=45, rate=50.0, listed=True)
    pipeline = word_totals(fragments(made, 90), hf.sink.parquet(tmp_path / "out"))
    summary = hf.run(pipeline, spark=spark, store=tmp_path / "store", least_rows=30, most_rows=30, checkpoint="delta")
    last = hf.read_output(tmp_path / "out", "parquet").group_by("word").agg(pl.col("n").max())
    assert dict(last.rows()) == Counter(word for text in made(0, 90)["text"] for word in text.split())
    assert sum(fragment.state_rows for fragment in summary.fragments.values()) >= 45
