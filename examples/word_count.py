"""Count words in lines of text, every ten seconds of event time.

holdfast run examples/word_count.py
"""

import polars as pl

import holdfast as hf

LINES = (
    "the quick brown fox jumps over the lazy dog",
    "to hold fast is to hold on",
    "a stream is a table that is never finished",
)
LINES_PER_SECOND = 100


def lines(start: int, stop: int) -> pl.DataFrame:
    """Lines start .. stop-1 of an endless text; the same lines for the same numbers, so that they can be replayed."""
    number = pl.int_range(start, stop, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "time": number * 1_000 // LINES_PER_SECOND,
            "text": [LINES[i % len(LINES)] for i in range(start, stop)],
        },
        schema={"time": pl.Int64, "text": pl.String},
    )


pipeline = hf.Pipeline("word-count")
text = pipeline.source(
    "text",
    hf.source.generator(lines, {"time": pl.Int64, "text": pl.String}, rows=6_000),
    event_time="time",
    time_unit="ms",
)
words = text.select("time", word=pl.col("text").str.split(" ")).explode("word")
counts = words.key_by("word").window(hf.window.tumbling("10s"), name="counts").agg(times=hf.count())
counts.filter(pl.col("times") > 300).sink("out", hf.sink.console())
counts.sink("files", hf.sink.parquet("out/word-count"))
