"""The papers' queries as Holdfast pipelines.

    pipeline = query("cm1").build(source, sink)

The eleven queries of Scabbard's evaluation come first, then SEEP's word frequency and top-k, CEC's count
windows and a keyed process. A query only says what to compute: source and sink are the caller's, and the
source must have the columns of the query's dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from holdfast.connect.base import Sink, Source
from holdfast.errors import DeclarationError
from holdfast.graph.aggregates.extremes import max
from holdfast.graph.aggregates.ranking import top_k
from holdfast.graph.aggregates.sums import count, mean, sum
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.stream import Stream
from holdfast.graph.windows import count as count_window
from holdfast.graph.windows import sliding, tumbling
from holdfast_lab.workloads.datasets import DATASETS, Dataset, ysb_ads

__all__ = ["PAPER_QUERIES", "QUERIES", "Query", "query"]

CEC_WINDOW = 10
"""Rows in a count window of `cec`; the paper has 1, 10 and 1000."""

MILESTONE = 10
"""`keyed` puts out a key's count and sum at every so many rows of the key."""

TOP = 10
"""How many languages `topk` ranks."""

FEET_PER_SEGMENT = 5_280
SLOW = 40
"""Below this average speed a road segment is congested."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the papers. `sizes` are its window sizes in seconds, `slide` how often windows start.

    `declare` takes the stream of events and the slide and returns the stream of results. Queries without time
    windows have no sizes and do not look at the slide.
    """

    name: str
    description: str
    dataset: Dataset
    declare: Callable[[Stream, int], Stream]
    sizes: tuple[int, ...] = ()
    slide: int = 1

    @property
    def tuple_bytes(self) -> int:
        """Bytes of an input tuple in the paper."""
        return self.dataset.tuple_bytes

    def build(
        self,
        source: Source,
        sink: Sink | None = None,
        *,
        pipeline_name: str | None = None,
        slide: int | None = None,
        persist: Mapping[str, Any] | None = None,
    ) -> Pipeline:
        """The query over `source`, its results going to `sink`; without one its last operator is left open.

        `slide` in seconds replaces the query's own: a slide as long as the size makes tumbling windows. With `persist`
        the events go through a p-stream, declared with these options of `Stream.persist`.
        """
        pipeline = Pipeline(pipeline_name or self.name.lower())
        data = self.dataset
        events = pipeline.source("events", source, event_time=data.event_time, time_unit=data.time_unit)
        if persist is not None:
            events = events.persist("kept", **persist)
        results = self.declare(events, self.checked_slide(slide))
        if sink is not None:
            results.sink("results", sink)
        return pipeline

    def checked_slide(self, slide: int | None) -> int:
        """The slide to use. It must divide the sizes, so that all windows end on multiples of it."""
        if slide is None:
            return self.slide
        if not self.sizes:
            raise DeclarationError(
                f"query {self.name} has no time window", cure="leave the slide out", operator=self.name
            )
        if slide <= 0 or any(size % slide for size in self.sizes):
            sizes = " and ".join(f"{size} s" for size in self.sizes)
            raise DeclarationError(
                f"a slide of {slide} s does not divide the window of {sizes}",
                cure="choose a divisor of it, e.g. the size itself for tumbling windows",
                operator=self.name,
            )
        return slide


def query(name: str) -> Query:
    """The query with this name, in upper or lower case."""
    for asked in QUERIES.values():
        if asked.name.lower() == name.lower():
            return asked
    raise DeclarationError(f"there is no query '{name}'", cure=f"choose one of: {', '.join(QUERIES)}")


def _cm1(events: Stream, slide: int) -> Stream:
    return events.key_by("category").window(sliding(60, slide), name="total").agg(total_cpu=sum("cpu"))


def _cm2(events: Stream, slide: int) -> Stream:
    failed = events.filter(pl.col("event_type") == 3).named("failed")
    return failed.key_by("job_id").window(sliding(60, slide), name="mean").agg(mean_cpu=mean("cpu"))


def _sg1(events: Stream, slide: int) -> Stream:
    return events.window(sliding(3600, slide), name="global").agg(global_mean=mean("value"))


def _sg2(events: Stream, slide: int) -> Stream:
    plugs = events.key_by("plug", "household", "house")
    return plugs.window(sliding(128, slide), name="local").agg(local_mean=mean("value"))


def _sg3(events: Stream, slide: int) -> Stream:
    both = _sg2(events, slide).join(_sg1(events, slide), on="window_end", window=tumbling(slide), name="compare")
    above = both.filter(pl.col("local_mean") > pl.col("global_mean")).named("above")
    return above.key_by("house").window(tumbling(slide), name="outliers").agg(plugs=count())


def _segments(events: Stream) -> Stream:
    return events.with_columns(segment=pl.col("position") // FEET_PER_SEGMENT).named("segments")


def _lrb1(events: Stream, slide: int) -> Stream:
    segments = _segments(events).key_by("highway", "direction", "segment")
    speeds = segments.window(sliding(300, slide), name="speeds").agg(mean_speed=mean("speed"))
    return speeds.filter(pl.col("mean_speed") < SLOW).named("congested")


def _lrb2(events: Stream, slide: int) -> Stream:
    vehicles = _segments(events).key_by("highway", "direction", "segment", "vehicle")
    return vehicles.window(sliding(30, slide), name="reports").agg(reports=count())


def _lrb3(events: Stream, slide: int) -> Stream:
    segments = _lrb2(events, slide).key_by("highway", "direction", "segment")
    return segments.window(tumbling(slide), name="vehicles").agg(vehicles=count("vehicle"))


def _ysb(events: Stream, slide: int) -> Stream:
    views = events.filter(pl.col("event_type") == 0).named("views").select("event_time", "ad_id").named("ads")
    campaigns = views.join_table(ysb_ads(), on="ad_id", name="campaigns").key_by("campaign_id")
    return campaigns.window(sliding(10, slide), name="counts").agg(views=count(), last_view=max("event_time"))


def _nq(events: Stream, slide: int) -> Stream:
    counts = events.key_by("auction").window(sliding(60, slide), name="counts").agg(bids=count())
    most = counts.window(tumbling(slide), name="most").agg(bids=max("bids"))
    hot = counts.join(most, on=["window_end", "bids"], window=tumbling(slide), name="hot")
    return hot.select("auction", "window_end", "bids").named("items")


def _sm(events: Stream, slide: int) -> Stream:
    return events.window(sliding(60, slide), name="means").agg(
        mean_mf01=mean("mf01"), mean_mf02=mean("mf02"), mean_mf03=mean("mf03")
    )


def _words(events: Stream, slide: int) -> Stream:
    split = events.with_columns(word=pl.col("text").str.strip_chars().str.split(" ")).named("split")
    words = split.select("time", "word").named("words").explode("word", name="each")
    return words.key_by("word").window(sliding(30, slide), name="counts").agg(times=count())


def _topk(events: Stream, slide: int) -> Stream:
    kept = events.select("view_time", "language").named("languages")
    counts = kept.key_by("language").window(sliding(30, slide), name="counts").agg(views=count())
    return counts.window(tumbling(slide), name="ranking").agg(
        ranking=top_k("language", TOP, by="views"), views=top_k("views", TOP)
    )


def _cec(events: Stream, slide: int) -> Stream:
    prices = events.key_by("item_id").window(count_window(CEC_WINDOW))
    return prices.agg(mean_price=mean("item_price")).named("prices")


def _keyed(events: Stream, slide: int) -> Stream:
    return events.key_by("key").process(
        running_totals,
        state={"n": pl.Int64, "total": pl.Int64},
        output={"key": pl.Int64, "event_time": pl.Int64, "n": pl.Int64, "total": pl.Int64},
        keep_forever=True,
        event_time="event_time",
        name="totals",
    )


def running_totals(rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
    """Count and sum of the values of each key so far, put out at every MILESTONE-th row of the key.

    Only keys that reach a milestone in these rows are looked at row by row.
    """
    added = rows.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum())
    before = added.join(state, on="key", how="left").with_columns(pl.col("n", "total").fill_null(0))
    upserts = before.select("key", n=pl.col("n") + pl.col("rows"), total=pl.col("total") + pl.col("value"))
    reaching = before.filter((pl.col("n") + pl.col("rows")) // MILESTONE > pl.col("n") // MILESTONE)
    every_row = rows.join(reaching.select("key", "n", "total"), on="key", maintain_order="left").select(
        "key",
        "event_time",
        n=pl.col("n") + pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("key"),
        total=pl.col("total") + pl.col("value").cum_sum().over("key"),
    )
    return Step(output=every_row.filter(pl.col("n") % MILESTONE == 0), upserts=upserts)


_CM, _SG, _LRB, _SM = (DATASETS[name] for name in ("cm", "sg", "lrb", "sm"))

QUERIES: dict[str, Query] = {
    query.name: query
    for query in (
        Query("CM1", "total CPU requested, by category", _CM, _cm1, (60,)),
        Query("CM2", "mean CPU requested by failed tasks, by job", _CM, _cm2, (60,)),
        Query("SG1", "mean of all readings", _SG, _sg1, (3600,)),
        Query("SG2", "mean reading, by plug", _SG, _sg2, (128,)),
        Query("SG3", "how many plugs are above the mean of all, by house", _SG, _sg3, (3600, 128)),
        Query("LRB1", "congested road segments: mean speed below 40", _LRB, _lrb1, (300,)),
        Query("LRB2", "position reports, by road segment and vehicle", _LRB, _lrb2, (30,)),
        Query("LRB3", "vehicles, by road segment", _LRB, _lrb3, (30,)),
        Query("YSB", "ad views, by campaign", DATASETS["ysb"], _ysb, (10,), 10),
        Query("NQ", "hot items: the auctions with the most bids", DATASETS["nq"], _nq, (60,)),
        Query("SM", "means of three energy readings", _SM, _sm, (60,)),
        Query("words", "word frequency", DATASETS["text"], _words, (30,), 30),
        Query("topk", "the most visited language versions", DATASETS["views"], _topk, (30,), 30),
        Query("cec", "mean price over windows of rows, by item", DATASETS["items"], _cec),
        Query("keyed", "running count and sum, by key", DATASETS["keyed"], _keyed),
    )
}
"""All queries by name."""

PAPER_QUERIES = tuple(QUERIES)[:11]
"""The names of the eleven queries of Scabbard's evaluation."""
