"""What each operator means, row by row, in plain Python. Slow, short and independent of the engine.

Rows are dicts in the order of their source. `seen_watermarks` gives each row the watermark its source had just before
it; everything about lateness follows from that.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import polars as pl

import holdfast as hf
from harness import plain_rows
from holdfast.sink import collect
from holdfast.source import memory
from strategies import Given, Row

BOUND = "watermark before"
NAN = "NaN"


def seen_watermarks(given: Given, column: str = "ts") -> list[Row]:
    """The rows, each with the watermark of its source before it (None before the first row)."""
    greatest: int | None = None
    rows = []
    for row in given.rows:
        rows.append({**row, BOUND: None if greatest is None else greatest - given.lateness})
        greatest = row["ts"] if greatest is None else max(greatest, row["ts"])
    return rows


def windows_of(time: int, size: int, slide: int) -> list[tuple[int, int]]:
    """The windows [start, end) with start a multiple of slide that hold the time."""
    start = time // slide * slide
    found = []
    while start + size > time:
        found.append((start, start + size))
        start -= slide
    return found


def open_windows(row: Row, size: int, slide: int, time: str = "ts") -> list[tuple[int, int]]:
    """The windows of a row that were not closed when it came."""
    return [w for w in windows_of(row[time], size, slide) if row[BOUND] is None or w[1] > row[BOUND]]


def group_windows(
    rows: Iterable[Row], keys: Sequence[str], size: int, slide: int
) -> tuple[dict[tuple[Any, ...], list[Row]], list[Row]]:
    """Rows by (keys, start, end), and the late rows."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    late = []
    for row in rows:
        windows = open_windows(row, size, slide)
        for window in windows:
            groups[(*(canonical(row[key]) for key in keys), *window)].append(row)
        if not windows:
            late.append(row)
    return groups, late


def group_sessions(
    rows: Iterable[Row], keys: Sequence[str], gap: int
) -> tuple[dict[tuple[Any, ...], list[Row]], list[Row]]:
    """Rows by (keys, start, end) of their session, and the late rows."""
    by_key: dict[tuple[Any, ...], list[tuple[int, Row]]] = defaultdict(list)
    late = []
    for index, row in enumerate(rows):
        if row[BOUND] is not None and row["ts"] < row[BOUND]:
            late.append(row)
        else:
            by_key[tuple(canonical(row[key]) for key in keys)].append((index, row))
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for key, members in by_key.items():
        burst: list[tuple[int, Row]] = []
        for index, row in sorted(members, key=lambda item: (item[1]["ts"], item[0])):
            if burst and row["ts"] - burst[-1][1]["ts"] >= gap:
                _close(groups, key, burst, gap)
                burst = []
            burst.append((index, row))
        if burst:
            _close(groups, key, burst, gap)
    return groups, late


def _close(
    groups: dict[tuple[Any, ...], list[Row]], key: tuple[Any, ...], burst: list[tuple[int, Row]], gap: int
) -> None:
    in_order = [row for _, row in sorted(burst, key=lambda item: item[0])]
    groups[(*key, burst[0][1]["ts"], burst[-1][1]["ts"] + gap)] = in_order


def group_counts(rows: Iterable[Row], keys: Sequence[str], size: int, slide: int) -> dict[tuple[Any, ...], list[Row]]:
    """Rows by (keys, index) of the complete count windows."""
    by_key: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        by_key[tuple(canonical(row[key]) for key in keys)].append(row)
    groups = {}
    for key, members in by_key.items():
        index = 0
        while index * slide + size <= len(members):
            groups[(*key, index)] = members[index * slide : index * slide + size]
            index += 1
    return groups


# aggregates: the declared one, and what it means for the rows of a window in order of arrival

Meaning = Callable[[list[Row]], Any]


def values(rows: list[Row], column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def wrapped(total: int, bits: int = 64, signed: bool = True) -> int:
    total %= 1 << bits
    return total - (1 << bits) if signed and total >= 1 << (bits - 1) else total


def _sum(column: str) -> Meaning:
    return lambda rows: sum(values(rows, column))


def _mean(column: str) -> Meaning:
    def meaning(rows: list[Row]) -> float | None:
        found = [float(value) for value in values(rows, column)]
        return sum(found) / len(found) if found else None

    return meaning


def _var(column: str, ddof: int = 1) -> Meaning:
    def meaning(rows: list[Row]) -> float | None:
        found = [float(value) for value in values(rows, column)]
        if len(found) <= ddof:
            return None
        middle = sum(found) / len(found)
        return sum((value - middle) ** 2 for value in found) / (len(found) - ddof)

    return meaning


def _std(column: str) -> Meaning:
    variance = _var(column)

    def meaning(rows: list[Row]) -> float | None:
        found = variance(rows)
        return None if found is None else math.sqrt(found)

    return meaning


def _extreme(column: str, pick: Callable[[list[Any]], Any]) -> Meaning:
    def meaning(rows: list[Row]) -> Any:
        found = values(rows, column)
        numbers = [value for value in found if value == value]  # NaN is passed over where there is anything else
        return pick(numbers) if numbers else found[0] if found else None

    return meaning


def _first(column: str) -> Meaning:
    return lambda rows: min(enumerate(rows), key=lambda item: (item[1]["ts"], item[0]))[1][column]


def _last(column: str) -> Meaning:
    return lambda rows: max(enumerate(rows), key=lambda item: (item[1]["ts"], item[0]))[1][column]


def _top(column: str, k: int, by: str | None = None) -> Meaning:
    def meaning(rows: list[Row]) -> list[Any]:
        rank = by or column
        pairs = [(row[rank], row[column]) for row in rows if row[rank] is not None and row[column] is not None]
        return [value for _, value in sorted(pairs, reverse=True)[:k]]

    return meaning


def _quantile(column: str, share: float) -> Meaning:
    """By the line between the two values that lie beside it; NaN is greater than all."""

    def meaning(rows: list[Row]) -> float | None:
        found = sorted(map(float, values(rows, column)), key=lambda value: (value != value, value))
        if not found:
            return None
        place = share * (len(found) - 1)
        low, high = found[math.floor(place)], found[math.ceil(place)]
        return low if low == high else low + (place - math.floor(place)) * (high - low)

    return meaning


def _lower_quantile(column: str, share: float) -> Meaning:
    def meaning(rows: list[Row]) -> float | None:
        found = sorted(map(float, values(rows, column)), key=lambda value: (value != value, value))
        return found[math.floor(share * (len(found) - 1))] if found else None

    return meaning


def _in_order(rows: list[Row]) -> list[Row]:
    """By event time; of equal times as they came."""
    return sorted(rows, key=lambda row: row["ts"])


def _collected(column: str) -> Meaning:
    return lambda rows: values(_in_order(rows), column)


def extreme_row(rows: list[Row], by: str, greatest: bool) -> Row | None:
    """The first row with the greatest or least value; NaN is passed over where there is anything else."""
    found = [row for row in _in_order(rows) if row[by] is not None]
    numbers = [row for row in found if row[by] == row[by]]
    pick = max if greatest else min
    return pick(numbers, key=lambda row: row[by]) if numbers else found[0] if found else None


def _arg(by: str, columns: Sequence[str], greatest: bool) -> Meaning:
    def meaning(rows: list[Row]) -> Any:
        row = extreme_row(rows, by, greatest)
        if len(columns) == 1:
            return None if row is None else row[columns[0]]
        return None if row is None else {column: row[column] for column in columns}

    return meaning


def _spread() -> hf.Aggregate:
    return hf.aggregate(
        lift={"lo": pl.col("v").min(), "hi": pl.col("v").max()},
        combine=lambda s: {"lo": s.lo.min(), "hi": s.hi.max()},
        lower=lambda s: s.hi - s["lo"],
    )


def _spread_meaning(rows: list[Row]) -> int | None:
    found = values(rows, "v")
    return max(found) - min(found) if found else None


AGGREGATES: dict[str, tuple[hf.Aggregate, Meaning]] = {
    "n": (hf.count(), len),
    "n_v": (hf.count("v"), lambda rows: len(values(rows, "v"))),
    "sum_v": (hf.sum("v"), _sum("v")),
    "sum_e": (hf.sum("e"), lambda rows: wrapped(sum(values(rows, "e")))),
    "sum_w": (hf.sum("w"), _sum("w")),
    "sum_u": (hf.sum("u"), lambda rows: wrapped(sum(values(rows, "u")), signed=False)),
    "sum_b": (hf.sum("b"), _sum("b")),
    "sum_x": (hf.sum("x"), _sum("x")),
    "sum_f": (hf.sum("f"), _sum("f")),
    "sum_expr": (hf.sum(pl.col("v") * 2 + 1), lambda rows: sum(2 * value + 1 for value in values(rows, "v"))),
    "mean_v": (hf.mean("v"), _mean("v")),
    "mean_x": (hf.mean("x"), _mean("x")),
    "mean_f": (hf.mean("f"), _mean("f")),
    "min_e": (hf.min("e"), _extreme("e", min)),
    "max_e": (hf.max("e"), _extreme("e", max)),
    "min_f": (hf.min("f"), _extreme("f", min)),
    "max_f": (hf.max("f"), _extreme("f", max)),
    "min_w": (hf.min("w"), _extreme("w", min)),
    "max_u": (hf.max("u"), _extreme("u", max)),
    "max_s": (hf.max("s"), _extreme("s", max)),
    "min_s": (hf.min("s"), _extreme("s", min)),
    "max_b": (hf.max("b"), _extreme("b", max)),
    "var_x": (hf.var("x"), _var("x")),
    "var0_v": (hf.var("v", ddof=0), _var("v", 0)),
    "std_x": (hf.std("x"), _std("x")),
    "first_e": (hf.first("e"), _first("e")),
    "last_e": (hf.last("e"), _last("e")),
    "first_s": (hf.first("s"), _first("s")),
    "last_f": (hf.last("f"), _last("f")),
    "top_e": (hf.top_k("e", 3), _top("e", 3)),
    "top_s": (hf.top_k("s", 2), _top("s", 2)),
    "top_v_by_x": (hf.top_k("v", 2, by="x"), _top("v", 2, "x")),
    "distinct_s": (hf.approx_distinct("s"), lambda rows: len(set(values(rows, "s")))),
    "distinct_e": (hf.approx_distinct("e"), lambda rows: len(set(values(rows, "e")))),
    "exact_s": (hf.count_distinct("s"), lambda rows: len(set(values(rows, "s")))),
    "exact_f": (hf.count_distinct("f"), lambda rows: len(set(map(canonical, values(rows, "f"))))),
    "exact_pairs": (
        hf.count_distinct(pl.struct("v", "s")),
        lambda rows: len({(row["v"], row["s"]) for row in rows}),
    ),
    "median_v": (hf.median("v"), _quantile("v", 0.5)),
    "median_b": (hf.median("b"), _quantile("b", 0.5)),
    "quantile_x": (hf.quantile("x", 0.9), _quantile("x", 0.9)),
    "lower_f": (hf.quantile("f", 0.3, interpolation="lower"), _lower_quantile("f", 0.3)),
    "list_s": (hf.collect_list("s"), _collected("s")),
    "list_expr": (hf.collect_list(pl.col("v") * 2), lambda rows: [2 * value for value in _collected("v")(rows)]),
    "arg_max_e": (hf.arg_max("e", "v"), _arg("e", ["v"], True)),
    "arg_max_f": (hf.arg_max("f", "s", "x"), _arg("f", ["s", "x"], True)),
    "arg_min_s": (hf.arg_min("s", "e"), _arg("s", ["e"], False)),
    "arg_min_f": (hf.arg_min("f", "e", "f"), _arg("f", ["e", "f"], False)),
    "spread": (_spread(), _spread_meaning),
}
"""Small groups: there a HyperLogLog sketch is exact after rounding."""

VALUE_COLUMNS = ("v", "e", "w", "u", "b", "x", "f", "s")


def declared(names: Iterable[str]) -> dict[str, hf.Aggregate]:
    return {name: AGGREGATES[name][0] for name in names}


def results(groups: dict[tuple[Any, ...], list[Row]], names: Sequence[str]) -> list[tuple[Any, ...]]:
    return [(*group, *(AGGREGATES[name][1](rows) for name in names)) for group, rows in groups.items()]


# comparing


def canonical(value: Any) -> Any:
    """Values that count as equal get one form: NaN, the two zeros, lists."""
    if isinstance(value, float):
        return NAN if value != value else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(canonical(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, canonical(item)) for name, item in value.items())
    return value


def assert_same_rows(actual: pl.DataFrame | list[tuple[Any, ...]], expected: Iterable[Sequence[Any]]) -> None:
    """Equal as multisets, exactly."""
    rows = plain_rows(actual) if isinstance(actual, pl.DataFrame) else actual
    found, wanted = Counter(map(canonical, rows)), Counter(canonical(tuple(row)) for row in expected)
    assert not (found - wanted), f"rows that should not be there: {list((found - wanted).elements())[:5]}"
    assert not (wanted - found), f"rows that are missing: {list((wanted - found).elements())[:5]}"


def assert_same_results(actual: pl.DataFrame, expected: Iterable[Sequence[Any]], group: int) -> None:
    """The first `group` columns name a row and must fit exactly; floats behind them within rounding."""
    found: dict[Any, Any] = {}
    for row in map(canonical, plain_rows(actual)):
        assert row[:group] not in found, f"{row[:group]} comes twice"
        found[row[:group]] = row[group:]
    wanted = {canonical(tuple(row[:group])): canonical(tuple(row[group:])) for row in expected}
    assert found.keys() == wanted.keys(), (
        f"too many: {list(found.keys() - wanted.keys())[:5]}, missing: {list(wanted.keys() - found.keys())[:5]}"
    )
    names = actual.columns[group:]
    for key, wanted_values in wanted.items():
        for name, mine, its in zip(names, found[key], wanted_values, strict=True):
            assert close(mine, its), f"{name} of {key} is {mine}, should be {its}"


def close(mine: Any, its: Any) -> bool:
    if isinstance(mine, float) and isinstance(its, float | int):
        return mine == its or math.isclose(mine, its, rel_tol=1e-6, abs_tol=1e-6)
    return bool(mine == its) and isinstance(mine, bool) == isinstance(its, bool)


# declaring


def source(pipeline: hf.Pipeline, given: Given, name: str = "in") -> hf.Stream:
    clock = given.clock
    return pipeline.source(
        name,
        memory(given.frame()),
        event_time="ts",
        time_unit=None if isinstance(clock.dtype, pl.Datetime) else clock.unit,  # type: ignore[arg-type]
        lateness=clock.ticks(given.lateness),
    )


def to_sink(stream: hf.Stream, name: str = "out") -> None:
    stream.sink(name, collect())


def new_pipeline() -> hf.Pipeline:
    return hf.Pipeline("test")
