"""A pipeline and its tests: fed by hand, without Spark, and with a crash at every step.

holdfast run examples/tested_pipeline.py        # the pipeline, on files that appear in in/clicks
pytest examples/tested_pipeline.py              # its tests
"""

import polars as pl

import holdfast as hf


def declare() -> hf.Pipeline:
    """Clicks per page and minute."""
    clicks = {"at": pl.Datetime("ms"), "page": pl.String, "kind": pl.String}
    pipeline = hf.Pipeline("tested")
    source = hf.source.files("in/clicks", format="ndjson", schema=clicks, grow=True)
    events = pipeline.source("clicks", source, event_time="at", lateness="10s")
    pages = events.filter(pl.col("kind") == "click").key_by("page").window(hf.window.tumbling("1 min"))
    pages.agg(clicks=hf.count()).sink("pages", hf.sink.parquet("out/pages"))
    return pipeline


pipeline = declare()


def click(second: int, page: str = "/", kind: str = "click") -> dict[str, object]:
    return {"at": second * 1_000, "page": page, "kind": kind}


def test_a_minute_is_counted_when_the_watermark_has_passed_it() -> None:
    with hf.testing.InProcess(declare) as run:
        run.feed("clicks", [click(1), click(59), click(30, kind="view"), click(65)])
        run.run()
        assert run.rows("pages").is_empty()  # until ten seconds after the minute, clicks may be late
        run.watermark("clicks", 60_000)
        run.run()
        assert run.rows("pages")["clicks"].to_list() == [2]


def test_what_comes_too_late_is_left_out() -> None:
    with hf.testing.InProcess(declare) as run:
        run.feed("clicks", [click(1), click(75), click(2)])
        run.end()
        run.run()
        assert run.rows("pages")["clicks"].to_list() == [1, 1]
        assert run.late == {"window": 1}


@hf.testing.crash_everywhere({"clicks": [click(1), click(30, "/buy"), click(20), click(61), click(90, "/buy")]})
def test_it_survives_a_crash_at_every_step() -> hf.Pipeline:
    return declare()
