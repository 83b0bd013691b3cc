"""Toll assessment: charges tolls to the accounts of vehicles, and answers requests for balances. Keyed by vehicle.

The toll of a segment is charged when its vehicle reports from another segment on the same trip.
"""

import polars as pl

import holdfast as hf

ACCOUNT = {"balance": pl.Int64, "pending": pl.Int32}
EVENTS = {"vid": pl.Int32, "time": pl.Int32, "leaves": pl.Boolean, "toll": pl.Int32, "qid": pl.Int32}
"""A vehicle enters a segment (`toll`), exits from another one than it last reported from (`toll` is 0), or asks for its
balance (`qid`, and no toll)."""
BALANCES = {"vid": pl.Int32, "time": pl.Int32, "qid": pl.Int32, "balance": pl.Int64}


def assess(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    events = rows.join(state, on="vid", how="left", maintain_order="left").with_columns(
        pl.col("balance").fill_null(0),
        due=pl.col("toll").shift(1).forward_fill().over("vid").fill_null(pl.col("pending")).fill_null(0),
        pending=pl.col("toll").forward_fill().over("vid").fill_null(pl.col("pending")),
    )
    charge = pl.when(pl.col("leaves")).then(pl.col("due")).otherwise(0).cast(pl.Int64)
    events = events.with_columns(balance=pl.col("balance") + charge.cum_sum().over("vid"))
    return hf.Step(
        output=events.filter(pl.col("qid").is_not_null()).select("vid", "time", "qid", "balance"),
        upserts=events.filter(pl.col("toll").is_not_null())
        .group_by("vid", maintain_order=True)
        .last()
        .select("vid", *ACCOUNT),
    )
