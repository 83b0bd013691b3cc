"""The queries of the experiments about scaling: a ranking of page views and the tolls of Linear Road.

In both, raw rows reach a keyed operator that is written as the paper's are, in plain code that looks at one row after
the other. So this operator costs far more than reading does, and what scaling gives is what its partitions give.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

import numpy as np
import polars as pl

from holdfast.connect.base import Sink, Source
from holdfast.graph.aggregates.ranking import top_k
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import tumbling
from holdfast_lab.experiment.seep.rising_input import TIME
from holdfast_lab.workloads.datasets import DATASETS
from holdfast_lab.workloads.queries import FEET_PER_SEGMENT, SLOW
from holdfast_lab.workloads.synthetic import LANGUAGES

__all__ = ["CountViews", "PageViews", "Positions", "ScalingQuery", "linear_road", "page_views", "toll_calculator"]

_POOL = 1 << 17
_PAGES = 20_000
_ZIPF = 1.05
_TOP = 10
_HIGHWAYS = 16
_MINUTE_MS = 1_000
_FREE_VEHICLES = 20
_FORGETTING = 0.02
_ACCIDENT = 4
_WORDS = ("Übersicht", "Ελλάδα", "Café", "history", "list", "Москва", "music", "river", "São", "war", "water", "東京")


@dataclass(frozen=True, slots=True)
class PageViews:
    """Views of an encyclopedia's pages; the n-th page, and the n-th language version, has about 1/n of the views."""

    seed: int

    def __call__(self, start: int, stop: int) -> pl.DataFrame:
        return _round(_page_views(self.seed), start, stop)


@dataclass(frozen=True, slots=True)
class Positions:
    """Position reports of Linear Road: the sample, repeated for several highways with its rows in another order. What
    a vehicle says comes as the text it sends; beside it is what the report is routed by."""

    seed: int

    def __call__(self, start: int, stop: int) -> pl.DataFrame:
        return _round(_positions(self.seed), start, stop)


def _round(pool: pl.DataFrame, start: int, stop: int) -> pl.DataFrame:
    """Rows start .. stop-1 of the pool, repeated without end."""
    parts = []
    while start < stop:
        at = start % pool.height
        rows = min(pool.height - at, stop - start)
        parts.append(pool.slice(at, rows))
        start += rows
    return pl.concat(parts) if parts else pool.clear()


@lru_cache(maxsize=1)
def _page_views(seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    weights = 1 / np.arange(1, _PAGES + 1) ** _ZIPF
    page = random.choice(_PAGES, _POOL, p=weights / weights.sum())
    by_language = 1 / np.arange(1, len(LANGUAGES) + 1)
    language_of = random.choice(len(LANGUAGES), _PAGES, p=by_language / by_language.sum())
    words = random.choice(len(_WORDS), (_PAGES, 3))
    titles = [quote("_".join(_WORDS[word] for word in row)) + f"_({number})" for number, row in enumerate(words)]
    return pl.DataFrame(
        {
            "language": pl.Series(LANGUAGES).gather(language_of[page]),
            "page": page.astype(np.int64),
            "title": pl.Series(titles).gather(page),
            "bytes": random.integers(500, 200_000, _POOL),
        }
    )


@lru_cache(maxsize=1)
def _positions(seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    text = pl.struct("vehicle", "speed", "lane", "position").struct.json_encode().alias("report")
    sample = DATASETS["lrb"].load().select("direction", "position", text)
    rounds = -(-_POOL // sample.height)
    order = np.concatenate([random.permutation(sample.height) for _ in range(rounds)])[:_POOL]
    highway = random.integers(0, _HIGHWAYS, _POOL).astype(np.int32)
    return sample[order].with_columns(pl.Series("highway", highway))


def ranking(source: Source, sink: Sink, name: str, partitions: int, *, window_s: int) -> Pipeline:
    """The most visited pages of every window. Map keeps what is needed, reduce counts the views of each page."""
    pipeline = Pipeline(name)
    views = pipeline.source("views", source, event_time=TIME, time_unit="ms")
    needed = views.select(TIME, "language", "page", "title").named("map")
    counts = needed.key_by("page").process(
        CountViews(window_s * 1_000),
        state={"window": pl.Int64, "views": pl.Int64, "shown": pl.String},
        output={TIME: pl.Int64, "page": pl.Int64, "shown": pl.String, "views": pl.Int64},
        keep_forever=True,
        timers=True,
        event_time=TIME,
        name="reduce",
        partitions=partitions,
    )
    top = counts.window(tumbling(window_s), name="top").agg(
        ranking=top_k("shown", _TOP, by="views"), views=top_k("views", _TOP)
    )
    top.sink("results", sink)
    return pipeline


_VIEWS = pl.Schema({"page": pl.Int64(), "window": pl.Int64(), "views": pl.Int64(), "shown": pl.String()})


@dataclass(frozen=True, slots=True)
class CountViews:
    """Views of each page in the current window, with its title for people: decoded, in one spelling, in lower case."""

    window_ms: int

    def __call__(self, rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
        known = {page: (window, views, shown) for page, window, views, shown in state.select(*_VIEWS).iter_rows()}
        now: dict[int, tuple[int, int, str]] = {}
        closed: list[tuple[int, int, str, int]] = []
        length = self.window_ms
        columns = (rows[TIME].to_list(), rows["page"].to_list(), rows["language"].to_list(), rows["title"].to_list())
        for at, page, language, title in zip(*columns, strict=True):
            shown = unicodedata.normalize("NFC", unquote(title)).replace("_", " ").casefold()
            window, views, before = now.get(page) or known.get(page) or (-1, 0, "")
            current = at // length
            if window != current:
                if views:
                    closed.append(((window + 1) * length - 1, page, before, views))
                views = 0
            now[page] = (current, views + 1, f"{language}: {shown}")
        for page in context.timers["page"].to_list():
            window, views, shown = known[page]
            if views:
                closed.append(((window + 1) * length - 1, page, shown, views))
            now[page] = (window, 0, shown)
        output = pl.DataFrame(closed, schema=[TIME, "page", "shown", "views"], orient="row") if closed else None
        upserts = pl.DataFrame(
            {
                "page": list(now),
                "window": [window for window, _, _ in now.values()],
                "views": [views for _, views, _ in now.values()],
                "shown": [shown for _, _, shown in now.values()],
            },
            schema=_VIEWS,
        )
        timers = upserts.filter(pl.col("views") > 0).select("page", at=(pl.col("window") + 1) * length)
        return Step(output=output, upserts=upserts, timers=timers)


def tolls(source: Source, sink: Sink, name: str, partitions: int) -> Pipeline:
    """The tolls of road segments. A minute of the road is a second here."""
    pipeline = Pipeline(name)
    reports = pipeline.source("reports", source, event_time=TIME, time_unit="ms")
    segments = reports.with_columns(segment=pl.col("position") // FEET_PER_SEGMENT).named("forward")
    made = segments.key_by("highway", "direction", "segment").process(
        toll_calculator,
        state=_SEGMENT,
        output=_TOLL,
        keep_forever=True,
        event_time=TIME,
        name="tolls",
        partitions=partitions,
    )
    made.sink("results", sink)
    return pipeline


_KEYS = {"highway": pl.Int32(), "direction": pl.Int32(), "segment": pl.Int32()}
_SEGMENT = pl.Schema(
    {"minute": pl.Int64(), "vehicles": pl.List(pl.Int32()), "speed": pl.Float64(), "stopped": pl.Int64()}
)
_TOLL = pl.Schema({TIME: pl.Int64(), **_KEYS, "toll": pl.Float64()})


@dataclass(slots=True)
class _Segment:
    """Of a road segment: the vehicles of this minute, a mean speed that forgets, and reports of standing in a row."""

    minute: int
    vehicles: set[int]
    speed: float
    stopped: int

    def report(self, vehicle: int, speed: int) -> None:
        self.vehicles.add(vehicle)
        self.speed += (speed - self.speed) * _FORGETTING
        self.stopped = self.stopped + 1 if speed == 0 else 0

    def end_minute(self, minute: int) -> float:
        """The toll of the next minute: for slow and crowded segments without an accident."""
        crowd = len(self.vehicles) - _FREE_VEHICLES
        free = crowd <= 0 or self.speed >= SLOW or self.stopped >= _ACCIDENT
        self.minute = minute
        self.vehicles = set()
        return 0.0 if free else 2.0 * crowd * crowd


def toll_calculator(rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
    """As Linear Road has it, report by report. When a segment's minute ends, its toll for the next one is put out."""
    segments: dict[tuple[int, ...], _Segment] = {
        row[:3]: _Segment(row[3], set(row[4]), row[5], row[6]) for row in state.select(*_KEYS, *_SEGMENT).iter_rows()
    }
    out: list[tuple[int, int, int, int, float]] = []
    columns = (rows[name].to_list() for name in (TIME, *_KEYS, "report"))
    for at, highway, direction, segment, text in zip(*columns, strict=True):
        report = json.loads(text)
        key = (highway, direction, segment)
        minute = at // _MINUTE_MS
        found = segments.get(key)
        if found is None:
            found = segments[key] = _Segment(minute, set(), float(report["speed"]), 0)
        if minute != found.minute:
            out.append((at, highway, direction, segment, found.end_minute(minute)))
        found.report(report["vehicle"], report["speed"])
    kept = [(*key, state.minute, sorted(state.vehicles), state.speed, state.stopped) for key, state in segments.items()]
    touched = pl.DataFrame(kept, schema={**_KEYS, **_SEGMENT}, orient="row")
    return Step(output=pl.DataFrame(out, schema=_TOLL, orient="row"), upserts=touched)


@dataclass(frozen=True, slots=True)
class ScalingQuery:
    """A query to put under load: its input, its pipeline with so many partitions, and the operator that has them.
    `epoch_rows` keep one partition busy for most of a second."""

    make: Callable[[int, int], pl.DataFrame]
    build: Callable[[Source, Sink, str, int], Pipeline]
    operator: str
    epoch_rows: int


def page_views(seed: int, window_s: int) -> ScalingQuery:
    return ScalingQuery(PageViews(seed), lambda *given: ranking(*given, window_s=window_s), "reduce", 180_000)


def linear_road(seed: int) -> ScalingQuery:
    return ScalingQuery(Positions(seed), tolls, "tolls", 150_000)
