"""Queries of the kind that other systems test themselves with (Structured Streaming, Bytewax, NEXMark): what each means
is said in plain Python, and the output is that, however the input is cut into epochs, tasks and partitions.

An event is a bid: `ts` (seconds, out of order by less than the lateness), `who`, `item`, `price`, `words`.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import groupby
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    assert_same_rows,
    group_counts,
    group_sessions,
    group_windows,
    new_pipeline,
    seen_watermarks,
    to_sink,
)

import holdfast as hf
from harness import run
from strategies import Given, cuts, examples

Row = dict[str, Any]
SCHEMA = {"ts": pl.Int64(), "who": pl.Int64(), "item": pl.Int64(), "price": pl.Int64(), "words": pl.String()}
LATENESS = 6
CATEGORIES = pl.DataFrame({"item": [0, 1, 2, 3], "category": ["old", "old", "new", "new"]})
CATEGORY = dict(CATEGORIES.rows())


def bids(seed: int, count: int = 30) -> Given:
    chance = random.Random(seed)
    rows, now = [], 0
    for _ in range(count):
        now += chance.choice([0, 0, 1, 1, 2, 3, 9, 30])
        words = " ".join(chance.choices(["a", "b", "c", "dd"], k=chance.randrange(4)))
        rows.append(
            {
                "ts": now - chance.randrange(LATENESS),
                "who": chance.randrange(4),
                "item": chance.randrange(5),
                "price": chance.randrange(1, 100),
                "words": words,
            }
        )
    return Given(rows, dict(SCHEMA), lateness=LATENESS)


def bid_source(pipeline: hf.Pipeline, given: Given, name: str = "bids") -> hf.Stream:
    return pipeline.source(
        name, hf.source.memory(given.frame()), event_time="ts", time_unit="s", lateness=f"{given.lateness}s"
    )


Declare = Callable[[hf.Stream], hf.Stream]
Means = Callable[[Given], list[tuple[Any, ...]]]
QUERIES: dict[str, tuple[Declare, Means]] = {}


def query(declare: Declare) -> Callable[[Means], Means]:
    def known(means: Means) -> Means:
        QUERIES[means.__name__.replace("_", "-")] = (declare, means)
        return means

    return known


@query(lambda rows: rows.select("who", euros=pl.col("price") * 0.9))
def currency_conversion(given: Given) -> list[tuple[Any, ...]]:
    return [(row["who"], row["price"] * 0.9) for row in given.rows]


@query(lambda rows: rows.filter(pl.col("item").is_in([1, 3]), "price >= 50").select("item", "price"))
def selection(given: Given) -> list[tuple[Any, ...]]:
    return [(r["item"], r["price"]) for r in given.rows if r["item"] in (1, 3) and r["price"] >= 50]


@query(
    lambda rows: (
        rows.select("ts", word=pl.col("words").str.split(" "))
        .explode("word")
        .filter(pl.col("word") != "")
        .key_by("word")
        .window(hf.window.tumbling("10s"))
        .agg(n=hf.count())
    )
)
def word_count_per_window(given: Given) -> list[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for (start, end), rows in group_windows(seen_watermarks(given), (), 10, 10)[0].items():
        found.update((word, start, end) for row in rows for word in row["words"].split())
    return [(*group, n) for group, n in found.items()]


@query(lambda rows: rows.key_by("who").window(hf.window.tumbling("10s")).agg(most=hf.max("price"), n=hf.count()))
def highest_bid_per_user(given: Given) -> list[tuple[Any, ...]]:
    groups = group_windows(seen_watermarks(given), ("who",), 10, 10)[0]
    return [(*group, max(row["price"] for row in rows), len(rows)) for group, rows in groups.items()]


@query(
    lambda rows: (
        rows.join_table(CATEGORIES, on="item")
        .key_by("category")
        .window(hf.window.sliding("20s", "5s"))
        .agg(mean=hf.mean("price"))
    )
)
def average_price_per_category(given: Given) -> list[tuple[Any, ...]]:
    rows = [{**row, "category": CATEGORY[row["item"]]} for row in seen_watermarks(given) if row["item"] in CATEGORY]
    return [
        (*g, sum(r["price"] for r in of) / len(of)) for g, of in group_windows(rows, ("category",), 20, 5)[0].items()
    ]


def hot(rows: hf.Stream) -> hf.Stream:
    per_item = rows.key_by("item").window(hf.window.sliding("20s", "10s"), name="per-item").agg(bids=hf.count())
    most = per_item.select("window_end", "bids").named("ends")
    best = most.window(hf.window.tumbling("10s"), name="best").agg(most=hf.max("bids"), at=hf.max("window_end"))
    joined = per_item.join(best.select("window_end", "most"), on="window_end", window=hf.window.tumbling("10s"))
    return joined.filter(pl.col("bids") == pl.col("most")).select("item", "window_end", "bids")


@query(hot)
def hot_items(given: Given) -> list[tuple[Any, ...]]:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for (item, _, end), rows in group_windows(seen_watermarks(given), ("item",), 20, 10)[0].items():
        counts[end][item] = len(rows)
    return [(i, end, n) for end, found in counts.items() for i, n in found.items() if n == max(found.values())]


@query(lambda rows: rows.key_by("who").window(hf.window.count(3)).agg(mean=hf.mean("price")))
def average_of_every_three_bids(given: Given) -> list[tuple[Any, ...]]:
    groups = group_counts(given.rows, ("who",), 3, 3)
    return [(*group, sum(row["price"] for row in rows) / 3) for group, rows in groups.items()]


@query(lambda rows: rows.key_by("item").window(hf.window.count(4, 1)).agg(total=hf.sum("price")))
def last_four_bids_of_an_item(given: Given) -> list[tuple[Any, ...]]:
    return [(*g, sum(row["price"] for row in of)) for g, of in group_counts(given.rows, ("item",), 4, 1).items()]


@query(lambda rows: rows.key_by("who").window(hf.window.session("8s")).agg(n=hf.count(), best=hf.top_k("price", 2)))
def user_sessions(given: Given) -> list[tuple[Any, ...]]:
    groups = group_sessions(seen_watermarks(given), ("who",), 8)[0]
    return [(*g, len(of), sorted((r["price"] for r in of), reverse=True)[:2]) for g, of in groups.items()]


@query(lambda rows: rows.window(hf.window.tumbling("15s")).agg(first=hf.first("price"), last=hf.last("price")))
def opening_and_closing_price(given: Given) -> list[tuple[Any, ...]]:
    found = []
    for group, rows in group_windows(seen_watermarks(given), (), 15, 15)[0].items():
        in_time = sorted(enumerate(rows), key=lambda numbered: (numbered[1]["ts"], numbered[0]))
        found.append((*group, in_time[0][1]["price"], in_time[-1][1]["price"]))
    return found


@query(
    lambda rows: (
        rows.key_by("who", "item")
        .window(hf.window.tumbling("10s"), name="pairs")
        .agg(n=hf.count())
        .key_by("who")
        .window(hf.window.tumbling("10s"), name="distinct")
        .agg(items=hf.count(), bids=hf.sum("n"))
    )
)
def distinct_items_per_user(given: Given) -> list[tuple[Any, ...]]:
    groups = group_windows(seen_watermarks(given), ("who",), 10, 10)[0]
    return [(*group, len({row["item"] for row in rows}), len(rows)) for group, rows in groups.items()]


@query(
    lambda rows: (
        rows.window(hf.window.tumbling("5s"), name="short")
        .agg(n=hf.count())
        .window(hf.window.tumbling("20s"), name="long")
        .agg(windows=hf.count(), n=hf.sum("n"), most=hf.max("n"))
    )
)
def windows_of_windows(given: Given) -> list[tuple[Any, ...]]:
    found: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (start, _), rows in group_windows(seen_watermarks(given), (), 5, 5)[0].items():
        found[(start // 20 * 20, start // 20 * 20 + 20)].append(len(rows))
    return [(*window, len(ns), sum(ns), max(ns)) for window, ns in found.items()]


def both_sides(how: Any) -> Declare:
    def declare(rows: hf.Stream) -> hf.Stream:
        cheap = rows.filter(pl.col("price") < 40).named("cheap").select("ts", "item", cheap="price")
        dear = rows.filter(pl.col("price") > 60).named("dear").select("ts", "item", dear="price")
        joined = cheap.join(dear, on="item", window=hf.window.tumbling("10s"), how=how)
        return joined.select("item", "window_end", "cheap", "dear")

    return declare


def joined(given: Given, how: str) -> list[tuple[Any, ...]]:
    found = []
    for (item, _, end), rows in group_windows(seen_watermarks(given), ("item",), 10, 10)[0].items():
        cheap = [row["price"] for row in rows if row["price"] < 40]
        dear = [row["price"] for row in rows if row["price"] > 60]
        found += [(item, end, left, right) for left in cheap for right in dear]
        found += [(item, end, left, None) for left in cheap if not dear and how in ("left", "full")]
        found += [(item, end, None, right) for right in dear if not cheap and how == "full"]
    return found


@query(both_sides("inner"))
def inner_join_of_two_streams(given: Given) -> list[tuple[Any, ...]]:
    return joined(given, "inner")


@query(both_sides("left"))
def left_join_of_two_streams(given: Given) -> list[tuple[Any, ...]]:
    return joined(given, "left")


@query(both_sides("full"))
def full_join_of_two_streams(given: Given) -> list[tuple[Any, ...]]:
    return joined(given, "full")


def running(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """Mean of all prices of a user so far, per bid."""
    known = {who: (n, total) for who, n, total in state.select("who", "n", "total").rows()}
    out = []
    for who, price in rows.select("who", "price").rows():
        n, total = known.get(who, (0, 0))
        known[who] = n + 1, total + price
        out.append((who, (total + price) / (n + 1)))
    kept = [(who, n, total) for who, (n, total) in known.items()]
    return hf.Step(
        output=pl.DataFrame(out, schema={"who": pl.Int64, "mean": pl.Float64}, orient="row"),
        upserts=pl.DataFrame(kept, schema={"who": pl.Int64, "n": pl.Int64, "total": pl.Int64}, orient="row"),
    )


@query(
    lambda rows: rows.key_by("who").process(
        running, state={"n": pl.Int64, "total": pl.Int64}, output={"who": pl.Int64, "mean": pl.Float64},
        keep_forever=True,
    )
)  # fmt: skip
def running_mean(given: Given) -> list[tuple[Any, ...]]:
    found, seen = [], defaultdict(list)
    for row in given.rows:
        seen[row["who"]].append(row["price"])
        found.append((row["who"], sum(seen[row["who"]]) / len(seen[row["who"]])))
    return found


def first_only(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """The first bid of each item by each user."""
    fresh = rows.unique(["who", "item"], keep="first", maintain_order=True).join(
        state, on=["who", "item"], how="anti", maintain_order="left"
    )
    return hf.Step(
        output=fresh.select("ts", "who", "item", "price"),
        upserts=fresh.select("who", "item", seen=pl.lit(True)),
    )


FIRST = {"ts": pl.Int64, "who": pl.Int64, "item": pl.Int64, "price": pl.Int64}


def firsts(rows: hf.Stream) -> hf.Stream:
    return rows.key_by("who", "item").process(
        first_only, state={"seen": pl.Boolean}, output=FIRST, keep_forever=True, event_time="ts"
    )


def first_rows(given: Given) -> list[Row]:
    seen: set[tuple[int, int]] = set()
    found = []
    for row in seen_watermarks(given):
        if (row["who"], row["item"]) not in seen:
            found.append(row)
        seen.add((row["who"], row["item"]))
    return found


@query(firsts)
def drop_duplicates(given: Given) -> list[tuple[Any, ...]]:
    return [(row["ts"], row["who"], row["item"], row["price"]) for row in first_rows(given)]


@query(lambda rows: firsts(rows).window(hf.window.tumbling("5s")).agg(n=hf.count(), total=hf.sum("price")))
def window_behind_drop_duplicates(given: Given) -> list[tuple[Any, ...]]:
    groups = group_windows(first_rows(given), (), 5, 5)[0]
    return [(*group, len(rows), sum(row["price"] for row in rows)) for group, rows in groups.items()]


def branches(rows: hf.Stream) -> hf.Stream:
    odd = rows.filter(pl.col("price") % 2 == 1).named("odd").select("ts", "who", kind=pl.lit("odd"))
    even = rows.filter(pl.col("price") % 2 == 0).named("even").select("ts", "who", kind=pl.lit("even"))
    return odd.union(even).key_by("kind").window(hf.window.tumbling("10s")).agg(n=hf.count())


@query(branches)
def branch_and_merge(given: Given) -> list[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for (start, end), rows in group_windows(seen_watermarks(given), (), 10, 10)[0].items():
        found.update(("odd" if row["price"] % 2 else "even", start, end) for row in rows)
    return [(*group, n) for group, n in found.items()]


@query(lambda rows: rows.window(hf.window.tumbling("10s")).agg(people=hf.approx_distinct("who"), least=hf.min("price")))
def distinct_people_and_lowest_bid(given: Given) -> list[tuple[Any, ...]]:
    groups = group_windows(seen_watermarks(given), (), 10, 10)[0]
    return [(*g, len({row["who"] for row in rows}), min(row["price"] for row in rows)) for g, rows in groups.items()]


@query(
    lambda rows: (
        rows.with_columns(day=pl.col("ts") // 30).key_by("day", "who").window(hf.window.count(2)).agg(n=hf.count())
    )
)
def pairs_per_day(given: Given) -> list[tuple[Any, ...]]:
    rows = sorted(({**row, "day": row["ts"] // 30} for row in given.rows), key=lambda row: (row["day"], row["who"]))
    found = []
    for group, of in groupby(rows, key=lambda row: (row["day"], row["who"])):
        found += [(*group, index, 2) for index in range(len(list(of)) // 2)]
    return found


@pytest.mark.parametrize("name", QUERIES)
@examples(2)
@given(seed=st.integers(0, 2**32 - 1), lateness=st.sampled_from([LATENESS, LATENESS, 2, 0]), cut=cuts)
def test_a_query_gives_what_it_means_on_every_cut(name, seed, lateness, cut):
    declare, means = QUERIES[name]
    given = bids(seed)
    given = Given(given.rows, given.schema, lateness=lateness)
    pipeline = new_pipeline()
    to_sink(declare(bid_source(pipeline, given)))
    assert_same_rows(run(pipeline, cut).sinks["out"], means(given))
