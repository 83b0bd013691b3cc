"""The eleven queries in Flink SQL with windowing table functions, for comparison.

Each reads the view `events`, which has the columns that the query names and the event time `rt` (see `flink_input.py`),
and puts out the columns of the Holdfast query, so that both can be held against the same oracle. Windows are `HOP` and
`TUMBLE` on event time, which Flink computes from slices that windows share, with a pre-aggregation before the shuffle.
SG3, LRB3 and NQ chain windows by their `window_time`; SG3 and NQ have a window join.

YSB's static table is an array in the query, which is the cheapest look-up Flink has: a regular join with a table would
keep every event as state for ever, and the connectors that come with Flink have no look-up join.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import DeclarationError
from holdfast.graph.durations import TimeUnit, ticks
from holdfast_lab.workloads.queries import FEET_PER_SEGMENT, PAPER_QUERIES, SLOW, query
from holdfast_lab.workloads.synthetic import ysb_ads

__all__ = ["EVENTS", "FlinkQuery", "flink_query"]

EVENTS = "events"
"""The view that every query reads."""

_LAST_MOMENT = "moment"
"""The last millisecond of a window, the event time of its result."""


@dataclass(frozen=True, slots=True)
class FlinkQuery:
    """A query. `reads` are the columns of the dataset it needs, beside the event time; `views` come before `select`.

    `columns` are what `select` puts out, with their types.
    """

    name: str
    reads: tuple[str, ...]
    views: tuple[tuple[str, str], ...]
    select: str
    columns: tuple[tuple[str, str], ...]

    def statements(self) -> list[str]:
        """What to run before the query."""
        return [f"CREATE TEMPORARY VIEW {name} AS {body}" for name, body in self.views]

    def insert(self, sink: str) -> str:
        return f"INSERT INTO {sink} {self.select}"


def flink_query(name: str, *, slide: int | None = None) -> FlinkQuery:
    """Query `name` over the view `events`; `slide` as in `Query.build`."""
    asked = query(name)
    if asked.name not in PAPER_QUERIES:
        raise DeclarationError(
            f"query {asked.name} has no twin in Flink SQL", cure=f"choose one of: {', '.join(PAPER_QUERIES)}"
        )
    parts = _QUERIES[asked.name](asked.checked_slide(slide))
    unit = asked.dataset.time_unit
    columns = [(column, "BIGINT" if column in _BOUNDS else kind) for column, kind in parts.columns]
    fields = [_in_ticks(column, unit) if column in _BOUNDS else _quoted(column) for column, _ in columns]
    return FlinkQuery(
        asked.name, parts.reads, parts.views, f"SELECT {', '.join(fields)} FROM ({parts.select})", tuple(columns)
    )


_BOUNDS = ("window_start", "window_end")


@dataclass(frozen=True, slots=True)
class _QueryParts:
    """A query whose window bounds are still timestamps."""

    reads: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    select: str
    views: tuple[tuple[str, str], ...] = ()


def _quoted(name: str) -> str:
    """Some of the columns have names that SQL keeps for itself."""
    return f"`{name}`"


def _in_ticks(bound: str, unit: TimeUnit) -> str:
    seconds = f"CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', {bound}) AS BIGINT)"
    return f"{seconds} * {ticks('1s', unit)}" if unit != "s" else seconds


def _seconds(length: int) -> str:
    return f"INTERVAL '{length}' SECOND(4)"


def _windows(table: str, size: int, slide: int, time: str = "rt") -> str:
    """Every row of `table` with its windows."""
    if size == slide:
        return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR({time}), {_seconds(size)}))"
    return f"TABLE(HOP(TABLE {table}, DESCRIPTOR({time}), {_seconds(slide)}, {_seconds(size)}))"


def _windowed(
    table: str, keys: tuple[str, ...], size: int, slide: int, *aggregates: str, time: str = "rt", moment: bool = False
) -> str:
    """One row per key and window; with `moment` also the window's last moment, for windows that follow."""
    groups = [*map(_quoted, keys), *_BOUNDS, *(["window_time"] if moment else [])]
    fields = [*map(_quoted, keys), *_BOUNDS, *([f"window_time AS {_LAST_MOMENT}"] if moment else []), *aggregates]
    return f"SELECT {', '.join(fields)} FROM {_windows(table, size, slide, time)} GROUP BY {', '.join(groups)}"


def _mean(column: str, alias: str) -> str:
    """As a double: Flink's mean of integers is an integer."""
    return f"AVG(CAST({_quoted(column)} AS DOUBLE)) AS {alias}"


def _typed(keys: tuple[str, ...], kind: str, *values: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (*((key, kind) for key in keys), *((bound, "TIMESTAMP(3)") for bound in _BOUNDS), *values)


def _cm1(slide: int) -> _QueryParts:
    total = "SUM(CAST(`cpu` AS DOUBLE)) AS total_cpu"
    return _QueryParts(
        ("category", "cpu"),
        _typed(("category",), "INT", ("total_cpu", "DOUBLE")),
        _windowed(EVENTS, ("category",), 60, slide, total),
    )


def _cm2(slide: int) -> _QueryParts:
    return _QueryParts(
        ("event_type", "job_id", "cpu"),
        _typed(("job_id",), "BIGINT", ("mean_cpu", "DOUBLE")),
        _windowed("failed", ("job_id",), 60, slide, _mean("cpu", "mean_cpu")),
        (("failed", f"SELECT * FROM {EVENTS} WHERE `event_type` = 3"),),
    )


def _sg1(slide: int) -> _QueryParts:
    mean = _windowed(EVENTS, (), 3600, slide, _mean("value", "global_mean"))
    return _QueryParts(("value",), _typed((), "INT", ("global_mean", "DOUBLE")), mean)


_PLUG = ("plug", "household", "house")


def _sg2(slide: int) -> _QueryParts:
    mean = _windowed(EVENTS, _PLUG, 128, slide, _mean("value", "local_mean"))
    return _QueryParts(("value", *_PLUG), _typed(_PLUG, "INT", ("local_mean", "DOUBLE")), mean)


def _sg3(slide: int) -> _QueryParts:
    local = _windowed(EVENTS, _PLUG, 128, slide, _mean("value", "local_mean"), moment=True)
    everywhere = _windowed(EVENTS, (), 3600, slide, _mean("value", "global_mean"), moment=True)
    sides = [
        f"SELECT {value}, {', '.join(_BOUNDS)} FROM {_windows(side, slide, slide, _LAST_MOMENT)}"
        for side, value in (("locals", "house, local_mean"), ("globals", "global_mean"))
    ]
    above = (
        f"SELECT l.house, l.window_start, l.window_end FROM ({sides[0]}) AS l JOIN ({sides[1]}) AS g"
        " ON l.window_start = g.window_start AND l.window_end = g.window_end WHERE l.local_mean > g.global_mean"
    )
    return _QueryParts(
        ("value", *_PLUG),
        _typed(("house",), "INT", ("plugs", "BIGINT")),
        f"SELECT house, window_start, window_end, COUNT(*) AS plugs FROM ({above})"
        " GROUP BY house, window_start, window_end",
        (
            ("locals", f"SELECT house, local_mean, {_LAST_MOMENT} FROM ({local})"),
            ("globals", f"SELECT global_mean, {_LAST_MOMENT} FROM ({everywhere})"),
        ),
    )


_SEGMENT = ("highway", "direction", "segment")
_ON_SEGMENTS = ("segments", f"SELECT *, `position` / {FEET_PER_SEGMENT} AS segment FROM {EVENTS}")


def _lrb1(slide: int) -> _QueryParts:
    speeds = _windowed("segments", _SEGMENT, 300, slide, _mean("speed", "mean_speed"))
    return _QueryParts(
        ("highway", "direction", "position", "speed"),
        _typed(_SEGMENT, "INT", ("mean_speed", "DOUBLE")),
        f"SELECT * FROM ({speeds}) WHERE mean_speed < {SLOW}",
        (_ON_SEGMENTS,),
    )


def _lrb2(slide: int) -> _QueryParts:
    keys = (*_SEGMENT, "vehicle")
    return _QueryParts(
        ("highway", "direction", "position", "vehicle"),
        _typed(keys, "INT", ("reports", "BIGINT")),
        _windowed("segments", keys, 30, slide, "COUNT(*) AS reports"),
        (_ON_SEGMENTS,),
    )


def _lrb3(slide: int) -> _QueryParts:
    reports = _windowed("segments", (*_SEGMENT, "vehicle"), 30, slide, "COUNT(*) AS reports", moment=True)
    kept = ", ".join((*_SEGMENT, "vehicle", _LAST_MOMENT))
    return _QueryParts(
        ("highway", "direction", "position", "vehicle"),
        _typed(_SEGMENT, "INT", ("vehicles", "BIGINT")),
        _windowed("reports", _SEGMENT, slide, slide, "COUNT(vehicle) AS vehicles", time=_LAST_MOMENT),
        (_ON_SEGMENTS, ("reports", f"SELECT {kept} FROM ({reports})")),
    )


def _ysb(slide: int) -> _QueryParts:
    ads = ysb_ads().sort("ad_id")
    campaigns = f"ARRAY[{', '.join(map(str, ads['campaign_id'].to_list()))}]"
    return _QueryParts(
        ("event_type", "ad_id", "event_time"),
        _typed(("campaign_id",), "BIGINT", ("views", "BIGINT"), ("last_view", "BIGINT")),
        _windowed(
            "known",
            ("campaign_id",),
            10,
            slide,
            "COUNT(*) AS `views`",
            "MAX(`event_time`) AS last_view",
        ),
        (
            ("seen", f"SELECT `event_time`, `ad_id`, rt FROM {EVENTS} WHERE `event_type` = 0"),
            (
                "known",
                f"SELECT `event_time`, CAST({campaigns}[CAST(`ad_id` AS INT) + 1] AS BIGINT) AS campaign_id, rt"
                " FROM seen",
            ),
        ),
    )


def _nq(slide: int) -> _QueryParts:
    counts = _windowed(EVENTS, ("auction",), 60, slide, "COUNT(*) AS bids")
    most = "SELECT MAX(bids) AS bids, window_start, window_end FROM counts GROUP BY window_start, window_end"
    return _QueryParts(
        ("auction",),
        (("auction", "BIGINT"), ("window_end", "TIMESTAMP(3)"), ("bids", "BIGINT")),
        "SELECT c.auction, c.window_end, c.bids FROM (SELECT * FROM counts) AS c"
        f" JOIN ({most}) AS m ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.bids = m.bids",
        (("counts", counts),),
    )


def _sm(slide: int) -> _QueryParts:
    readings = ("mf01", "mf02", "mf03")
    means = [_mean(column, f"mean_{column}") for column in readings]
    values = [(f"mean_{column}", "DOUBLE") for column in readings]
    return _QueryParts(readings, _typed((), "INT", *values), _windowed(EVENTS, (), 60, slide, *means))


_QUERIES: dict[str, Callable[[int], _QueryParts]] = {
    "CM1": _cm1,
    "CM2": _cm2,
    "SG1": _sg1,
    "SG2": _sg2,
    "SG3": _sg3,
    "LRB1": _lrb1,
    "LRB2": _lrb2,
    "LRB3": _lrb3,
    "YSB": _ysb,
    "NQ": _nq,
    "SM": _sm,
}
