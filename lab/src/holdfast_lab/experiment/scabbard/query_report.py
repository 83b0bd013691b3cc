"""What is made of the runs of the eleven queries: ratios, bars, the paper's figures beside them, and the picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast_lab.experiment.definition import Bar, Figure, Row, at_least
from holdfast_lab.experiment.plots import COLOURS, grouped_bars, readable

__all__ = [
    "BARE", "ENGINES", "FLINK", "FLINK_BARE", "JOBS", "KEPT", "NAMES", "SHORT", "SPARK", "RoundRatios", "bars",
    "compared", "draw", "paper",
]  # fmt: skip

NAMES = ("CM1", "CM2", "SG1", "SG2", "SG3", "LRB1", "LRB2", "LRB3", "YSB", "NQ", "SM")

KEPT, JOBS, SHORT, BARE = "holdfast", "holdfast, jobs", "holdfast, 50 ms", "holdfast, bare"
SPARK, FLINK, FLINK_BARE = "spark", "flink", "flink, bare"
ENGINES = (KEPT, JOBS, SHORT, BARE, SPARK, FLINK, FLINK_BARE)

MUCH_FASTER = 10.0
BY_FAR_FASTER = {"YSB": 50.0, "CM1": 50.0}
LEAST_KEPT = 0.95
"""Of the throughput without fault tolerance must remain with it."""
LEAST_OVER_JOBS = 1.0
"""A crew is never slower than a Spark job for each epoch."""
LEAST_AT_SHORT = 0.5
"""Of the throughput at a latency of a second must remain at 50 ms."""

_PAPER_COSTS = {"CM1": 69, "CM2": 45, "SG1": 12, "SG2": 23, "NQ": 28}
_PAPER_SMALL_COSTS = ("SG3", "LRB1", "LRB2", "LRB3")


@dataclass(frozen=True, slots=True)
class RoundRatios:
    """Throughput with fault tolerance at a latency of a second over that without any and over that with Spark jobs, and
    at 50 ms over that at a second: medians of the rounds, None of what was not measured."""

    bare: float | None = None
    jobs: float | None = None
    short: float | None = None


def compared(rows: Iterable[Row], row: Row, ratios: Mapping[str, RoundRatios]) -> dict[str, Any]:
    """How Holdfast stands to the others, beside its row."""
    if row["engine"] != KEPT:
        return {}
    speed = {other["engine"]: other.get("tuples_per_s") for other in rows if other["query"] == row["query"]}
    mine = speed.get(KEPT)
    found = ratios.get(row["query"], RoundRatios())
    kept = found.bare

    def times(other: str) -> float | None:
        theirs = speed.get(other)
        return round(mine / theirs, 2) if mine and theirs else None

    return {
        "times_flink": times(FLINK),
        "times_flink_bare": times(FLINK_BARE),
        "times_spark": times(SPARK),
        "over_jobs": None if found.jobs is None else round(found.jobs, 3),
        "short_ratio": None if found.short is None else round(found.short, 3),
        "ft_ratio": None if kept is None else round(kept, 3),
        "ft_cost_percent": None if kept is None else round(100 * (1 - kept), 1),
    }


def bars(rows: Sequence[Row]) -> list[Bar]:
    """What every query must reach, and that the engines agree."""
    found: list[Bar] = []
    for row in rows:
        if row["engine"] != KEPT:
            continue
        name = row["query"]
        wanted = BY_FAR_FASTER.get(name, MUCH_FASTER)
        found.append(at_least(f"{name}: times Flink with checkpoints", row.get("times_flink"), wanted))
        found.append(at_least(f"{name}: times Structured Streaming", row.get("times_spark"), wanted))
        found.append(at_least(f"{name}: throughput kept with fault tolerance", row.get("ft_ratio"), LEAST_KEPT))
        found.append(at_least(f"{name}: times as fast as with Spark jobs", row.get("over_jobs"), LEAST_OVER_JOBS))
        found.append(at_least(f"{name}: throughput kept at 50 ms", row.get("short_ratio"), LEAST_AT_SHORT))
    compared = [row for row in rows if "same_output" in row]  # what a quick run had no time for is in the notes
    same = sum(1 for row in compared if row.get("same_output"))
    found.append(at_least("outputs as the oracle says, of those compared", same, max(1, len(compared))))
    return found


def paper() -> list[dict[str, Any]]:
    """What the text of Scabbard says; all else is in plots only."""
    faster = "§6.2: at least an order of magnitude better than Flink with checkpoints for all queries"
    said: list[dict[str, Any]] = [{"engine": KEPT, "times_flink": 10, "source": faster}]
    costs = [(name, cost, "overhead of persistence") for name, cost in _PAPER_COSTS.items()]
    costs += [(name, 11, "less than 11 %") for name in _PAPER_SMALL_COSTS]
    said += [
        {"query": name, "engine": KEPT, "ft_cost_percent": cost, "source": f"§6.2: {how}"} for name, cost, how in costs
    ]
    said.append({"query": "YSB", "engine": KEPT, "ft_cost_percent": None, "source": "§6.2: up to twofold"})
    return said + [
        {"query": name, "engine": engine, "latency_p50_ms": 50, "source": "§6.2: median latency below 50 ms"}
        for name in NAMES
        if name not in ("LRB3", "SM")
        for engine in (KEPT, SHORT)
    ]


def draw(figure: Figure, rows: Sequence[Row]) -> None:

    upper, lower = figure.subplots(2, 1)
    grouped_bars(upper, rows, group="query", series="engine", value="tuples_per_s", ylabel="tuples/s", log=True)
    latencies = [row for row in rows if row.get("latency_p50_ms")]
    if not latencies:
        return
    names = list(dict.fromkeys(row["query"] for row in rows))
    engines = [engine for engine in ENGINES if any(row["engine"] == engine for row in latencies)]
    for place, engine in enumerate(engines):
        own = [row for row in latencies if row["engine"] == engine]
        boxes = [
            {
                "whislo": row["latency_p5_ms"], "q1": row["latency_p25_ms"], "med": row["latency_p50_ms"],
                "q3": row["latency_p75_ms"], "whishi": row["latency_p95_ms"], "fliers": [],
            }
            for row in own
        ]  # fmt: skip
        at = [names.index(row["query"]) - 0.3 + 0.6 * (place + 0.5) / len(engines) for row in own]
        lower.bxp(
            boxes, positions=at, widths=0.5 / len(engines), showfliers=False, patch_artist=True,
            boxprops={"facecolor": COLOURS[ENGINES.index(engine)]}, medianprops={"color": "black"},
        )  # fmt: skip
    lower.set_xticks(range(len(names)), names)
    lower.set_ylabel("latency, ms (5, 25, 50, 75, 95 %)")
    lower.set_xlim(upper.get_xlim())
    lower.set_yscale("log")
    readable(lower.yaxis)
