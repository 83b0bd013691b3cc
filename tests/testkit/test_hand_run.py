"""A pipeline in the hands of a test: fed by hand, by a clock that the test moves, crashed where it likes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

import holdfast as hf
from holdfast.errors import DeclarationError, HoldfastError, WrongTypeError

LONG = bool(os.environ.get("HOLDFAST_FUZZ"))
CLICKS = {"ts": pl.Int64, "page": pl.String}


def clicks(path: Path = Path("/nowhere"), lateness: str = "0s") -> hf.Pipeline:
    """As it would run for real: nothing of it is about tests."""
    pipeline = hf.Pipeline("clicks")
    events = hf.source.files(path / "in", format="ndjson", schema=CLICKS, grow=True)
    counts = (
        pipeline.source("events", events, event_time="ts", time_unit="s", lateness=lateness)
        .key_by("page")
        .window(hf.window.tumbling("10s"))
        .agg(clicks=hf.count())
    )
    counts.sink("counts", hf.sink.parquet(path / "out"))
    return pipeline


def at(*times: int, page: str = "a") -> list[dict[str, object]]:
    return [{"ts": ts, "page": page} for ts in times]


def row(page: str, start: int, clicks: int) -> dict[str, object]:
    return {"page": page, "window_start": start, "window_end": start + 10, "clicks": clicks}


def test_rows_that_are_fed_come_out_when_their_window_closes() -> None:
    with hf.testing.InProcess(clicks()) as run:
        run.feed("events", at(1, 2, 9))
        run.run()
        run.assert_rows("counts", [])
        run.feed("events", at(12))
        run.run()
        run.assert_rows("counts", [row("a", 0, 3)])
        run.end()
        run.run()
        run.assert_rows("counts", [row("a", 0, 3), row("a", 10, 1)], ordered=True)


def test_a_watermark_closes_windows_and_makes_rows_late() -> None:
    with hf.testing.InProcess(clicks(lateness="5s")) as run:
        run.feed("events", at(1, 11))
        run.watermark("events", 10)
        run.run()
        run.assert_rows("counts", [row("a", 0, 1)])
        run.feed("events", at(3, 19))
        run.run()
        assert run.late == {"window": 1}
        run.end()
        run.run()
        run.assert_rows("counts", [row("a", 0, 1), row("a", 10, 2)])


def test_a_watermark_may_be_a_time_of_day() -> None:
    pipeline = hf.Pipeline("times")
    source = hf.source.generator(lambda a, b: pl.DataFrame(), {"at": pl.Datetime("ms")})
    windows = pipeline.source("rows", source, event_time="at").window(hf.window.tumbling("1h"))
    windows.agg(n=hf.count()).sink("out", hf.sink.console())
    with hf.testing.InProcess(pipeline) as run:
        run.feed("rows", [{"at": datetime(2026, 1, 1, 10, 5)}])
        run.watermark("rows", datetime(2026, 1, 1, 11))
        run.run()
        assert run.rows("out")["n"].to_list() == [1]


def test_what_was_committed_is_there_after_a_crash_and_what_was_not_comes_again() -> None:
    with hf.testing.InProcess(clicks, rows_per_epoch=2) as run:
        run.feed("events", at(1, 2, 3, 14))
        assert run.epoch()
        run.crash()
        run.feed("events", at(15, 28))
        run.run()
        run.crash()
        run.assert_rows("counts", [row("a", 0, 3), row("a", 10, 2)])


def test_the_clock_stands_until_it_is_set() -> None:
    def note(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        return hf.Step(output=rows.select("k", at=pl.lit(context.clock)))

    out = {"k": pl.Int64, "at": pl.Int64}

    pipeline = hf.Pipeline("clocked")
    source = pipeline.source("rows", hf.source.memory(pl.DataFrame({"k": [0]})))
    noted = source.key_by("k").process(note, state={}, output=out, time="clock", ttl="1h")
    noted.sink("out", hf.sink.collect())
    with hf.testing.InProcess(pipeline, now=5.0) as run:
        for now in (5.0, 7.5):
            run.now = now
            run.feed("rows", [{"k": 1}])
            run.run()
        run.assert_rows("out", [{"k": 1, "at": 5_000_000}, {"k": 1, "at": 7_500_000}])


def test_a_pipeline_that_p_streams_cut_is_run_as_a_whole() -> None:
    pipeline = hf.Pipeline("cut")
    rows = pipeline.source("rows", hf.source.memory(pl.DataFrame({"k": [0]})))
    kept = rows.filter(pl.col("k") > 0).persist("kept")
    kept.select(double=pl.col("k") * 2).sink("out", hf.sink.collect())
    with hf.testing.InProcess(pipeline) as run:
        run.feed("rows", [{"k": 0}, {"k": 1}, {"k": 2}])
        run.run()
        run.crash()
        run.feed("rows", [{"k": 3}])
        run.end()
        run.run()
        run.assert_rows("out", [{"double": 2}, {"double": 4}, {"double": 6}])


def test_a_sink_that_is_kept_is_written(tmp_path: Path) -> None:
    with hf.testing.InProcess(clicks(tmp_path), keep=["counts"]) as run:
        run.feed("events", at(1, 2, 13))
        run.run()
    assert hf.read_output(tmp_path / "out", "parquet").rows() == [("a", 0, 10, 2)]


def test_what_is_wrong_in_a_test_is_told() -> None:
    with hf.testing.InProcess(clicks()) as run:
        with pytest.raises(WrongTypeError, match=r"feeds no source 'event'.*\n.*it feeds: events"):
            run.feed("event", at(1))
        with pytest.raises(DeclarationError, match="keeps no sink 'out'"):
            run.rows("out")
        run.feed("events", at(1))
        run.end()
        run.run()
        with pytest.raises(AssertionError, match=r"sink 'counts': 1 row lost: \('a', 0, 10, 2\)"):
            run.assert_rows("counts", [row("a", 0, 2)])
    with pytest.raises(DeclarationError, match="keep names 'nothing'"):
        hf.testing.InProcess(clicks(), keep=["nothing"])
    with pytest.raises(HoldfastError, match="instead of a pipeline"):
        hf.testing.InProcess("clicks")  # type: ignore[arg-type]


EVENTS = [*at(1, 4, 2), *at(12, 5, page="b"), *at(11), *at(23, page="b")]


@hf.testing.crash_everywhere({"events": EVENTS}, most=1_000 if LONG else 6)
def test_clicks_survive_everything() -> hf.Pipeline:
    return clicks(lateness="10s")


def made(function: Callable[[pl.DataFrame], pl.DataFrame], schema: dict[str, pl.DataType]) -> Callable[[], None]:
    """A test of a pipeline with this function in it."""

    def declare() -> hf.Pipeline:
        pipeline = hf.Pipeline("mapped")
        rows = pipeline.source("rows", hf.source.memory(pl.DataFrame({"k": [0]})))
        rows.map_batches(function, schema=schema).sink("out", hf.sink.collect())
        return pipeline

    return hf.testing.crash_everywhere({"rows": [{"k": k} for k in (1, 2, 1, 1)]})(declare)


def test_a_result_that_depends_on_how_the_input_is_cut_is_found() -> None:
    test = made(lambda frame: frame.unique(), {"k": pl.Int64()})
    with pytest.raises(AssertionError, match=r"'out', in epochs of 1 row .* differs from the run in one epoch"):
        test()


def test_something_that_is_lost_in_a_crash_is_found_and_told_with_the_step() -> None:
    numbers = itertools.count()

    def numbered(frame: pl.DataFrame) -> pl.DataFrame:
        """The count begins again with each process: only a crash shows it."""
        return frame.with_columns(n=pl.Series([next(numbers) for _ in range(frame.height)], dtype=pl.Int64))

    test = made(numbered, {"k": pl.Int64(), "n": pl.Int64()})
    with pytest.raises(AssertionError, match=r"in epochs of 2 rows .*with a crash before Plan.* 2 rows lost.*seed=0"):
        test()
