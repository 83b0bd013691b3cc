"""What Linear Road is measured on: Holdfast, Structured Streaming or Flink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from holdfast_lab.bench.query_runs import session
from holdfast_lab.bench.road_elsewhere import OpenPeer, measure_peer, tolls_alone
from holdfast_lab.bench.road_on_flink import flink_peer
from holdfast_lab.bench.road_on_spark import spark_peer
from holdfast_lab.bench.road_run import RoadFigures, RoadOptions, RoadTraffic, measure_roads

__all__ = ["opened_engine"]

MeasureRoads: TypeAlias = Callable[[int, Path], RoadFigures]


@contextmanager
def opened_engine(engine: str, traffic: RoadTraffic, options: RoadOptions) -> Iterator[MeasureRoads]:
    """Measures so many expressways with files in a place. Flink starts anew each time."""

    def elsewhere(opened: OpenPeer) -> MeasureRoads:
        part = tolls_alone(traffic)
        return lambda count, place: measure_peer(engine, opened, count, part, options, place)

    if engine == "flink":
        yield elsewhere(flink_peer)
        return
    with session(engine) as spark:
        if engine == "spark":
            yield elsewhere(spark_peer(spark))
        else:
            yield lambda count, place: measure_roads(spark, count, traffic, options, place)
