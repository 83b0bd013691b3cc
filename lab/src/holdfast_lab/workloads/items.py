"""The query of CEC: the average price of items over windows that close after so many purchases of the item.

Purchases are a pure function of their offsets, so the source can be read again. Ids are uniform. Event time goes by the
offset and the rate. The paper's tuples have 100 bytes, of which the query reads these three columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from holdfast.connect.base import Sink, Source
from holdfast.connect.sources.generator import GeneratorSource, generator
from holdfast.graph.aggregates.sums import mean
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import count as count_window
from holdfast.graph.windows import tumbling
from holdfast_lab.workloads.words import _mixed

__all__ = ["AVERAGE", "ROW_BYTES", "Items", "average_price", "average_price_by_time", "items"]

AVERAGE = "average"
"""The name of the operator with the windows."""
ROW_BYTES = 24
_SCHEMA = {"item_id": pl.Int64, "item_price": pl.Int64, "item_time": pl.Int64}
_CHUNK = 500_000


@dataclass(frozen=True)
class Items:
    """Makes the purchases start .. stop-1: ids 0 .. `ids`-1, prices below 16,384, `item_time` in milliseconds, `rate`
    rows per second. With `hot`, every second purchase is of one of the first so many ids."""

    ids: int
    rate: float = 100_000.0
    seed: int = 0
    hot: int = 0

    def __call__(self, start: int, stop: int) -> pl.DataFrame:
        places = np.arange(start, stop, dtype=np.uint64)
        mixed = _mixed(places, self.seed)
        ids = mixed % np.uint64(self.ids)
        if self.hot:
            ids = np.where(places % np.uint64(2) == 0, ids % np.uint64(self.hot), ids)
        return pl.DataFrame(
            {
                "item_id": ids.astype(np.int64),
                "item_price": (mixed >> np.uint64(50)).astype(np.int64),
                "item_time": (np.arange(start, stop) * (1_000 / self.rate)).astype(np.int64),
            }
        )


def items(made: Items, rows: int | None = None) -> GeneratorSource:
    """A source of purchases, without an end if `rows` is None."""
    return generator(made, _SCHEMA, rows=rows, chunk_rows=_CHUNK)


def average_price(source: Source, sink: Sink, *, size: int, pipeline_name: str = "items") -> Pipeline:
    """The average price of every `size` purchases of an item."""
    pipeline = Pipeline(pipeline_name)
    bought = pipeline.source("items", source, event_time="item_time", time_unit="ms")
    windows = bought.key_by("item_id").window(count_window(size))
    windows.agg(price=mean("item_price")).named(AVERAGE).sink("out", sink)
    return pipeline


def average_price_by_time(source: Source, sink: Sink, *, window: str, pipeline_name: str = "items") -> Pipeline:
    """The average price of an item in each stretch of time."""
    pipeline = Pipeline(pipeline_name)
    bought = pipeline.source("items", source, event_time="item_time", time_unit="ms")
    windows = bought.key_by("item_id").window(tumbling(window))
    windows.agg(price=mean("item_price")).named(AVERAGE).sink("out", sink)
    return pipeline
