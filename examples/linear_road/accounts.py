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
    """All events of a vehicle in order, after one that brings what its account has."""
    account = state.select("vid", toll="pending", brought="balance")
    events = pl.concat([account, rows], how="diagonal").sort("vid", maintain_order=True)
    first = (pl.col("vid") != pl.col("vid").shift(1)).fill_null(True)
    pending = pl.when(first).then(pl.col("toll").fill_null(0)).otherwise("toll").forward_fill()
    due = pl.when(pl.col("leaves") & ~first).then(pending.shift(1)).otherwise(0)
    events = events.with_columns(first=first, pending=pending, charge=pl.coalesce("brought", due).cast(pl.Int64))
    total = pl.col("charge").cum_sum()
    before = pl.when("first").then(total - pl.col("charge")).forward_fill()
    events = events.with_columns(balance=total - before)
    charged = events.filter(pl.col("toll").is_not_null() & pl.col("brought").is_null())
    return hf.Step(
        output=events.filter(pl.col("qid").is_not_null()).select("vid", "time", "qid", "balance"),
        upserts=charged.filter((pl.col("vid") != pl.col("vid").shift(-1)).fill_null(True)).select("vid", *ACCOUNT),
    )
