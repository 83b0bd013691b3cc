"""Experiment `persistence`, Fig. 8 of Scabbard: making a stream durable, here and in a persistent queue.

Rows of the papers' datasets are appended to a p-stream, and rows of the same size are sent to a Kafka broker on the
same machine: a row per message as in the paper, and many rows per message; acknowledged when synced, as here, and
acknowledged from the page cache, as Kafka is mostly run. Where no broker can be had, a plain log file that is synced
after each batch takes its place, and says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.scabbard.durable_ingest import Ingested, into_pstream, into_segments
from holdfast_lab.experiment.scabbard.endless_streams import replayed
from holdfast_lab.experiment.scabbard.kafka import KAFKA_VERSION, Broker, broker
from holdfast_lab.workloads.datasets import Dataset, dataset

__all__ = ["EXPERIMENT"]

_OURS = "holdfast"
_OURS_SMALL = "holdfast, small batches"
_ROWS_SYNCED = "kafka, row per message, synced"
_BATCHES_SYNCED = "kafka, 64 kB per message, synced"
_KAFKA = {
    _ROWS_SYNCED: ("synced", None),
    _BATCHES_SYNCED: ("synced", 65_536),
    "kafka, row per message, page cache": ("cached", None),
    "kafka, 64 kB per message, page cache": ("cached", 65_536),
}
"""The topic, and how large a message is if it is not one row."""

_SEGMENTS = "segment log, synced"
_PRODUCER = {
    True: {"batch.size": "524288", "linger.ms": "10", "buffer.memory": "4194304"},
    False: {"batch.size": "1048576", "linger.ms": "10", "buffer.memory": "8388608"},
}
"""By whether a message is one row. A larger buffer gives no more throughput, but longer latencies."""

_BATCHES = {_OURS: 1 << 16, _OURS_SMALL: 1 << 12}
_POOL_ROWS = 1 << 19
_WARM_UP_SECONDS = 1.0
_SOURCE = "Scabbard, §6.3 and Fig. 8"
_LATENCY_MS = 90.0
_TIMES = 100.0


def run(settings: Settings) -> Result:

    names = settings.pick(quick=("cm", "ysb"), full=("cm", "sg", "lrb", "ysb", "nq", "sm"))
    seconds = settings.pick(quick=2.0, full=5.0)
    rows = [_ours(settings, dataset(name), system, seconds) for name in names for system in _BATCHES]
    widths = {row["data"]: row["tuple_bytes"] for row in rows}
    theirs, missing = _queue(settings, widths, seconds)
    rows = sorted([*rows, *theirs], key=lambda row: names.index(row["data"]))
    compared = _ROWS_SYNCED if missing is None else _SEGMENTS
    for row in rows:
        base = next(one for one in rows if one["data"] == row["data"] and one["system"] == compared)
        row["times_queue"] = row["tuples_per_s"] / base["tuples_per_s"]
    return Result(
        keys=("data", "system"),
        rows=rows,
        paper=_PAPER,
        bars=_bars(rows, compared),
        notes=_notes(missing),
        plot=lambda figure: _plot(figure, rows),
        shown=(
            "tuples_per_s",
            "mb_per_s",
            "latency_p50_ms",
            "latency_p95_ms",
            "disk_bytes_per_tuple",
            "synced",
            "times_queue",
        ),
        also={"compared_with": compared},
    )


_PAPER = (
    {"system": _OURS, "tuples_per_s": None, "times_queue": 100, "says": "at least", "source": _SOURCE},
    {"system": _ROWS_SYNCED, "tuples_per_s": 4_000_000, "says": "up to", "source": _SOURCE},
    {"system": _ROWS_SYNCED, "latency_p50_ms": 90, "says": "up to", "source": "Scabbard, §6.1"},
)


def _ours(settings: Settings, data: Dataset, system: str, seconds: float) -> dict[str, Any]:

    settings.say(f"{data.name}: {system}")
    batch = _BATCHES[system]
    stream = replayed(data, batch, _POOL_ROWS // batch, settings.seed)
    width = round(stream.bytes_per_row)
    place = settings.work / "store"
    try:
        found = into_pstream(place, data, stream, seconds)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return _row(data.name, system, width, found)


def _row(data: str, system: str, width: int, found: Ingested) -> dict[str, Any]:
    return {
        "data": data,
        "system": system,
        "tuple_bytes": width,
        "tuples_per_s": found.rows_per_s,
        "mb_per_s": found.rows_per_s * width / 1e6,
        "latency_p50_ms": found.latency_ms(0.5),
        "latency_p95_ms": found.latency_ms(0.95),
        "latency_p99_ms": found.latency_ms(0.99),
        "disk_bytes_per_tuple": found.bytes_per_row,
        "synced": True,
    }


def _queue(settings: Settings, widths: Mapping[str, int], seconds: float) -> tuple[list[dict[str, Any]], str | None]:
    """Kafka's rows; or those of the segment log, and why there is no Kafka."""

    try:
        with broker(settings.work / "kafka", settings.say) as running:
            for topic, options in (("synced", {"flush.messages": "1"}), ("cached", {})):
                running.make_topic(topic, options)
            return _kafka(settings, running, widths, seconds), None
    except HoldfastError as error:
        settings.say(f"no Kafka, a synced segment log instead: {error.problem}")
        return [_segments(settings, data, width, seconds) for data, width in widths.items()], error.problem


def _kafka(settings: Settings, running: Broker, widths: Mapping[str, int], seconds: float) -> list[dict[str, Any]]:
    """Kafka does not look into messages, so datasets with tuples of one size share a measurement."""
    by_size: dict[tuple[str, int], dict[str, Any]] = {}
    rates: dict[str, float] = {}
    for system, (topic, message) in _KAFKA.items():
        for size in dict.fromkeys(widths.values()):
            settings.say(f"{size} bytes: {system}")
            rows = 1 if message is None else message // size
            options = _PRODUCER[message is None]
            if system not in rates:  # how much is sent in the time there is; this also warms the broker up
                tried = 100_000 if message is None else 400
                rates[system] = running.send(topic, rows * size, tried, tried // 4, options).records_per_s
            warm_up, records = (int(rates[system] * time) for time in (_WARM_UP_SECONDS, _WARM_UP_SECONDS + seconds))
            sent = running.send(topic, rows * size, records, warm_up, options)
            rates[system] = sent.records_per_s
            by_size[system, size] = {
                "tuple_bytes": size,
                "tuples_per_s": sent.records_per_s * rows,
                "mb_per_s": sent.records_per_s * rows * size / 1e6,
                "latency_p50_ms": sent.p50_ms,
                "latency_p95_ms": sent.p95_ms,
                "latency_p99_ms": sent.p99_ms,
                "disk_bytes_per_tuple": None,
                "synced": topic == "synced",
            }
    return [
        {"data": data, "system": system, **by_size[system, width]}
        for data, width in widths.items()
        for system in _KAFKA
    ]


def _segments(settings: Settings, data: str, width: int, seconds: float) -> dict[str, Any]:

    place = settings.work / "segments"
    try:
        found = into_segments(place, width, 65_536, seconds)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return _row(data, _SEGMENTS, width, found)


def _bars(rows: Sequence[Row], compared: str) -> list[Bar]:
    """The paper's statement, what it says of its own latency, and the fairer comparison with messages of many rows."""
    ours = {row["data"]: row for row in rows if row["system"] == _OURS}
    batched = {row["data"]: row["tuples_per_s"] for row in rows if row["system"] == _BATCHES_SYNCED}
    bars = [
        at_least(
            f"throughput over '{compared}', least of all datasets (the paper: two orders of magnitude over Kafka)",
            min(row["times_queue"] for row in ours.values()),
            _TIMES,
        ),
        at_most(
            "median latency to the acknowledgement in ms, greatest of all datasets (the paper's limit for Kafka)",
            max(row["latency_p50_ms"] for row in ours.values()),
            _LATENCY_MS,
        ),
    ]
    if batched:
        least = min(ours[data]["tuples_per_s"] / rate for data, rate in batched.items())
        bars.append(at_least(f"throughput over '{_BATCHES_SYNCED}', least of all datasets", least, 1.0))
    return bars


def _notes(missing: str | None) -> list[str]:
    notes = [
        "Holdfast: one client in the same process hands batches of"
        f" {_BATCHES[_OURS]:,} (small: {_BATCHES[_OURS_SMALL]:,}) rows to the p-stream, four on their way; two"
        " threads encode, write and sync; a batch is acknowledged when it is committed.",
        "A tuple has the same number of bytes (tuple_bytes) for all systems: its width in memory here, which for"
        " generated datasets is less than the paper's, whose tuples are padded.",
        "The samples of the real datasets are repeated with their rows in random order and their times going on, so"
        " that no codec profits from the repetition.",
    ]
    if missing is not None:
        why = " ".join(missing.split())[:200]
        return [*notes, f"There was no Kafka broker ({why}): a plain log, synced every 64 kB, stands in its place."]

    return [
        *notes,
        f"Kafka {KAFKA_VERSION}: one broker (KRaft) and one producer (Kafka's own performance test) on this machine,"
        " over the loopback interface, 4 partitions, acks=all, no compression, random content. Synced means"
        " flush.messages=1. The paper's Kafka is 2.3.0 on 16 cores, with several producers.",
        "Kafka's producer sends over a socket; Holdfast's client does not.",
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    above, below = figure.subplots(2, 1, sharex=True)
    grouped_bars(above, rows, group="data", series="system", value="tuples_per_s", ylabel="tuples/s", log=True)
    grouped_bars(
        below, rows, group="data", series="system", value="latency_p50_ms", ylabel="median latency to ack, ms", log=True
    )
    for axes in (above, below):
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)


EXPERIMENT = Experiment(
    name="persistence",
    title="Making a stream durable: p-stream against a persistent queue",
    figure="Scabbard, Fig. 8",
    needs="a disk that syncs; for the broker, Java 17 and a Maven repository (once, 54 MB)",
    run=run,
)
