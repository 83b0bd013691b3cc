"""Sessions of visitors: clicks less than 30 seconds apart belong together. Clicks that come too late go to a sink of
their own.

holdfast run examples/sessions.py
"""

import numpy as np
import polars as pl

import holdfast as hf

SCHEMA = {"time": pl.Datetime("ms"), "visitor": pl.Int64, "page": pl.String}
START = 1_700_000_000_000


def clicks(start: int, stop: int) -> pl.DataFrame:
    """One click every 50 ms by one of 40 visitors, each active for ten minutes; one in 500 comes a minute late."""
    number = np.arange(start, stop, dtype=np.int64)
    behind = np.where(number % 500 == 499, 60_000, 0)
    return pl.DataFrame(
        {
            "time": pl.Series(START + number * 50 - behind).cast(pl.Datetime("ms")),
            "visitor": number % 40 + number // 12_000 * 40,
            "page": pl.Series(np.array(["/", "/shop", "/cart"], dtype=object)[number % 3].tolist(), dtype=pl.String),
        },
        schema=SCHEMA,
    )


pipeline = hf.Pipeline("sessions")
visits = pipeline.source("clicks", hf.source.generator(clicks, SCHEMA, rows=60_000), event_time="time", lateness="5s")
sessions = (
    visits.key_by("visitor")
    .window(hf.window.session("30s"), name="sessions")
    .agg(clicks=hf.count(), first_page=hf.first("page"), last_page=hf.last("page"))
)
sessions.sink("out", hf.sink.ndjson("out/sessions"))
sessions.late.sink("late", hf.sink.ndjson("out/late-clicks"))
