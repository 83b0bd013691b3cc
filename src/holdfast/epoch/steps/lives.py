"""Time-to-live: which life of its key's state a row belongs to.

State is gone for a row that comes more than `ttl` of event time after everything that touched its key before. This is
decided by the rows themselves, in their order, so it does not depend on how they are cut into epochs. A row that finds
the state gone begins a new life of the key; most epochs hold one life of each key only.
"""

from __future__ import annotations

import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.aggregates import ROW_TIME
from holdfast.plan.kept import TIMER, TOUCHED
from holdfast.state.matching import join_on_keys

__all__ = ["number_lives"]

LIFE = "__hf_life"


def number_lives(rows: pl.DataFrame, known: pl.DataFrame, keys: list[str], ttl: int) -> pl.Series | None:
    """For each row the number of the life it belongs to, 0 being that of the state in `known`; None if all are 0.

    A key whose timer is pending lives on, however long no row comes.
    """
    waits = pl.col(TIMER).is_not_null() if TIMER in known.columns else pl.lit(False)
    until = pl.when(waits).then(END_OF_TIME - ttl).otherwise(pl.col(TOUCHED)).alias(TOUCHED)
    touched = join_on_keys(rows.select(*keys, ROW_TIME), known.select(*keys, until), keys, "left", ordered=True)
    before = pl.max_horizontal(pl.col(ROW_TIME).cum_max().shift(1).over(keys), pl.col(TOUCHED))
    gone = (pl.col(ROW_TIME) > before + ttl).fill_null(False)
    lives = touched.with_columns(gone.cast(pl.Int64).alias(LIFE)).select(pl.col(LIFE).cum_sum().over(keys)).to_series()
    return lives if lives.max() else None
