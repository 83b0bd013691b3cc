"""Run two pipelines beside the program, look at them while they run, and stop them.

python examples/background_run.py
"""

import time

import polars as pl

import holdfast as hf

SCHEMA = {"time": pl.Int64, "sensor": pl.Int64, "value": pl.Float64}


def readings(start: int, stop: int) -> pl.DataFrame:
    number = pl.int_range(start, stop, dtype=pl.Int64, eager=True)
    return pl.DataFrame({"time": number, "sensor": number % 5, "value": (number % 90).cast(pl.Float64)})


def means(name: str, window: str) -> hf.Pipeline:
    """The mean of each sensor by window, from a source that goes on for ever."""
    pipeline = hf.Pipeline(name)
    source = pipeline.source(
        "readings", hf.source.generator(readings, SCHEMA, rate=2_000), event_time="time", time_unit="ms"
    )
    windows = source.key_by("sensor").window(hf.window.tumbling(window))
    windows.agg(mean=hf.mean("value")).named("means").sink("out", hf.sink.parquet(f"out/{name}"))
    return pipeline


def main() -> None:
    # They share one Spark session, which is closed with the last of them. An epoch twice a second, with all that has
    # come; without a trigger epochs are as short as they can be.
    with (
        hf.start(means("by-second", "1s"), trigger="500ms") as seconds,
        hf.start(means("by-minute", "1 min"), trigger="500ms") as minutes,
    ):
        while seconds.status().output_rows < 10:
            time.sleep(0.1)
        for running in (seconds, minutes):
            status = running.status()
            print(f"{status.pipeline} is {status.state}: {status.rows} rows in, {status.output_rows} out")
    # At the end of the block both are stopped: what was in flight is committed, and an error would be raised here.


if __name__ == "__main__":
    main()
