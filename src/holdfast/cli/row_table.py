"""Rows as a table in a terminal: some of them, with every column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.plurals import counted

if TYPE_CHECKING:
    import polars as pl

__all__ = ["shown_rows"]


def shown_rows(rows: pl.DataFrame, limit: int, width: int = 60) -> str:
    """The first rows, and a line that says how many there are. Texts are cut at `width` characters."""
    import polars as pl

    with pl.Config(
        tbl_rows=max(1, limit),
        tbl_cols=-1,
        tbl_hide_dataframe_shape=True,
        tbl_width_chars=10_000,
        fmt_str_lengths=width,
    ):
        shown = str(rows.head(limit))
    return f"{shown}\n{min(limit, rows.height):,} of {counted(rows.height, 'row')}"
