"""The input of the workloads as Polars frames with named, typed columns and an integer event time.

Some datasets are real. They are read from the directory given, else from the one that the environment
variable `HOLDFAST_DATA` names, else from the samples that come with the package (`data/`, with their origin).
The others are generated (`holdfast_lab.workloads.synthetic`). All frames are in order of event time; the real
files are in that order already, and a stable sort makes sure of it: rows of one instant keep their order.

Column types are as narrow as the papers' tuples: a row of the real datasets has the bytes of `tuple_bytes`,
up to padding. The generated ones leave padding out; `tuple_bytes` is the papers' figure.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import polars as pl

from holdfast.errors import CorruptFileError, HoldfastError
from holdfast.graph.durations import TimeUnit, ticks
from holdfast_lab.workloads.synthetic import (
    cec_items,
    keyed_events,
    nexmark_bids,
    page_views,
    sentences,
    ysb_ads,
    ysb_events,
)

__all__ = [
    "DATASETS",
    "DATA_VARIABLE",
    "Dataset",
    "cec_items",
    "cluster_monitoring",
    "dataset",
    "keyed_events",
    "linear_road_positions",
    "linear_road_reports",
    "nexmark_bids",
    "page_views",
    "sensor_monitoring",
    "sentences",
    "smart_grid",
    "ysb_ads",
    "ysb_events",
]

DATA_VARIABLE = "HOLDFAST_DATA"
"""The environment variable that names the directory of the whole files."""

Place = str | Path | None

CLUSTER_MONITORING = pl.Schema(
    {
        "timestamp": pl.Int64,
        "job_id": pl.Int64,
        "task_id": pl.Int64,
        "machine_id": pl.Int64,
        "event_type": pl.Int32,
        "user_id": pl.Int32,
        "category": pl.Int32,
        "priority": pl.Int32,
        "cpu": pl.Float32,
        "ram": pl.Float32,
        "disk": pl.Float32,
        "constraints": pl.Int32,
    }
)
SMART_GRID = pl.Schema(
    {
        "timestamp": pl.Int64,
        "value": pl.Float32,
        "property": pl.Int32,
        "plug": pl.Int32,
        "household": pl.Int32,
        "house": pl.Int32,
    }
)
LINEAR_ROAD_POSITIONS = pl.Schema(
    {
        "timestamp": pl.Int64,
        "vehicle": pl.Int32,
        "speed": pl.Int32,
        "highway": pl.Int32,
        "lane": pl.Int32,
        "direction": pl.Int32,
        "position": pl.Int32,
    }
)
SENSOR_MONITORING = pl.Schema(
    {
        "timestamp": pl.Int64,
        "message": pl.Int64,
        **dict.fromkeys(("mf01", "mf02", "mf03", "pc13", "pc14", "pc15", "pc25", "pc26", "pc27"), pl.Int32),
        "res": pl.Int32,
        "flag01": pl.Int32,
        "flag02": pl.Int32,
    }
)
LINEAR_ROAD_REPORTS = pl.Schema(
    {
        name: pl.Int64 if name == "time" else pl.Int32
        for name in (
            "type", "time", "vehicle", "speed", "highway", "lane", "direction", "segment", "position",
            "query", "from_segment", "to_segment", "weekday", "minute", "day",
        )
    }
)  # fmt: skip


def cluster_monitoring(directory: Place = None) -> pl.DataFrame:
    """Task events of a cluster of machines (Google's trace); `timestamp` in seconds."""
    return _in_order(_read("cluster-monitoring.txt", CLUSTER_MONITORING, directory), "timestamp")


def smart_grid(directory: Place = None) -> pl.DataFrame:
    """Readings of smart plugs (DEBS 2014), 0 is work, 1 is load; `timestamp` in seconds since 1970."""
    return _in_order(_read("smart-grid.txt", SMART_GRID, directory), "timestamp")


def linear_road_positions(directory: Place = None) -> pl.DataFrame:
    """Position reports of vehicles; `timestamp` in seconds, `position` in feet along the highway."""
    return _in_order(_read("linear-road-positions.txt", LINEAR_ROAD_POSITIONS, directory), "timestamp")


def sensor_monitoring(directory: Place = None) -> pl.DataFrame:
    """Readings of manufacturing equipment (DEBS 2012), about 100 a second in the whole file.

    `timestamp` is in microseconds since 1970; the file has tenths of them, which are cut off. Of the 42 flags
    at the end of a line the first two are kept, which makes the 14 attributes of the paper.
    """
    text = pl.Schema({**SENSOR_MONITORING, "timestamp": pl.String()})
    moment = pl.col("timestamp").str.slice(0, 26).str.to_datetime("%Y-%m-%dT%H:%M:%S%.6f", time_unit="us")
    frame = _read("sensor-monitoring.txt", text, directory).with_columns(moment.to_physical())
    return _in_order(frame, "timestamp")


def linear_road_reports(directory: Place = None) -> pl.DataFrame:
    """The first 20 seconds of Linear Road with all its fields; `time` in seconds.

    A field that does not apply is -1.
    `type` is 0 for a position report, 2 for an account balance and 3 for a daily expenditure query.
    """
    return _in_order(_read("linear-road-20s.csv", LINEAR_ROAD_REPORTS, directory, separator=","), "time")


@dataclass(frozen=True, slots=True)
class Dataset:
    """An input: how to load it, its event time column and the unit of that, and the paper's tuple size."""

    name: str
    description: str
    event_time: str
    time_unit: TimeUnit
    tuple_bytes: int
    real: Callable[[Place], pl.DataFrame] | None = None
    generate: Callable[[int, int], pl.DataFrame] | None = None

    def load(self, rows: int | None = None, *, seed: int = 0, directory: Place = None) -> pl.DataFrame:
        """The rows, all of a real dataset or 100,000 of a generated one unless `rows` says how many.

        Of a real dataset there may be fewer. `seed` is for generated datasets, `directory` for real ones.
        """
        if self.real is not None:
            frame = self.real(directory)
            return frame if rows is None else frame.head(rows)
        assert self.generate is not None
        return self.generate(100_000 if rows is None else rows, seed)

    def period(self, frame: pl.DataFrame) -> int:
        """By how many ticks to shift event times when `frame` is replayed: its span, up to a whole second.

        So the rows of the next round come after those of this one, and windows fall on rows as before.
        """
        second = ticks("1s", self.time_unit)
        low, high = frame[self.event_time].min(), frame[self.event_time].max()
        assert isinstance(low, int)
        assert isinstance(high, int)
        return (high // second - low // second + 1) * second


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset("cm", "cluster monitoring", "timestamp", "s", 64, real=cluster_monitoring),
        Dataset("sg", "smart grid", "timestamp", "s", 32, real=smart_grid),
        Dataset("lrb", "Linear Road positions", "timestamp", "s", 32, real=linear_road_positions),
        Dataset("sm", "sensor monitoring", "timestamp", "us", 64, real=sensor_monitoring),
        Dataset("lr", "Linear Road, all reports", "time", "s", 64, real=linear_road_reports),
        Dataset("ysb", "ad events", "event_time", "ms", 128, generate=ysb_events),
        Dataset("nq", "NEXMark bids", "date_time", "ms", 128, generate=nexmark_bids),
        Dataset("views", "page views", "view_time", "ms", 32, generate=page_views),
        Dataset("text", "sentence fragments", "time", "ms", 148, generate=sentences),
        Dataset("items", "items with prices", "item_time", "ms", 100, generate=cec_items),
        Dataset("keyed", "values with a key", "event_time", "ms", 24, generate=keyed_events),
    )
}
"""All inputs by name."""


def dataset(name: str) -> Dataset:
    """The dataset with this name."""
    if name not in DATASETS:
        raise HoldfastError(f"there is no dataset '{name}'", cure=f"choose one of: {', '.join(DATASETS)}")
    return DATASETS[name]


def _in_order(frame: pl.DataFrame, time: str) -> pl.DataFrame:
    return frame.sort(time, maintain_order=True)


def _locate(file: str, directory: Place) -> Traversable:
    given = directory if directory is not None else os.environ.get(DATA_VARIABLE)
    if not given:
        return resources.files("holdfast_lab.workloads") / "data" / file
    path = Path(given) / file
    if not path.is_file():
        raise HoldfastError(
            f"there is no file {file} in {given}",
            cure=f"put it there, or unset {DATA_VARIABLE} to use the samples of the package",
        )
    return path


def _read(file: str, schema: pl.Schema, directory: Place, *, separator: str | None = None) -> pl.DataFrame:
    """The first columns of a text file, separated by white space unless `separator` says otherwise."""
    width = len(schema)
    lines = _locate(file, directory).read_text(encoding="utf-8").splitlines()
    rows = [line.split(separator)[:width] for line in lines if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) < width:
            raise CorruptFileError(
                f"row {number} of {file} has {len(row)} fields, not {width}", cure="get the file again"
            )
    text = pl.DataFrame(rows, schema=dict.fromkeys(schema, pl.String), orient="row")
    return text.cast(schema)
