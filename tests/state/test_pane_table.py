"""Pane tables: rows by pane, forgotten by whole panes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from holdfast.hidden_columns import PANE, POSITION
from holdfast.state.levels import MOST_PIECES
from holdfast.state.manifest import Manifest
from holdfast.state.position import key_positions
from holdfast.state.tables import PaneTable, Writer
from holdfast.store import DirectoryStore
from strategies import examples

batches = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 5), st.integers(-20, 60), st.integers(1, 9)), max_size=8),
        st.none() | st.integers(-25, 50),
    ),
    max_size=40,
)


def frame_of(rows):
    frame = pl.DataFrame(rows, schema={"k": pl.Int64, PANE: pl.Int64, "v": pl.Int64}, orient="row")
    return frame.insert_column(0, pl.Series(POSITION, key_positions([frame["k"]], frame.height)))


def summed(rows):
    return rows.group_by(POSITION, "k", PANE, maintain_order=True).agg(pl.col("v").sum())


@examples(60)
@given(batches=batches, combined=st.booleans(), low=st.integers(-30, 60), width=st.integers(0, 40))
def test_a_pane_table_has_the_rows_of_the_panes_it_has_not_forgotten(tmp_path_factory, batches, combined, low, width):
    root: Path = tmp_path_factory.mktemp("panes")
    table = PaneTable("t", DirectoryStore(root, False), summed if combined else None)
    manifest = Manifest()
    model: Counter[tuple[int, int]] = Counter()
    behind: int | None = None
    for number, (rows, expired) in enumerate(batches):
        if expired is not None:
            behind = expired if behind is None else max(behind, expired)
        manifest = table.append(manifest, Writer(table.store, "op", str(number)), frame_of(rows), behind)
        for key, pane, value in rows:
            model[key, pane] += value
        if behind is not None:
            model = Counter({at: total for at, total in model.items() if at[1] > behind})
        assert len(manifest.pieces) <= MOST_PIECES
    first = low if behind is None else max(low, behind + 1)
    found: Counter[tuple[int, int]] = Counter()
    for frame in table.read(manifest, first, low + width):
        assert frame[POSITION].is_sorted()
        for key, pane, value in frame.select("k", PANE, "v").rows():
            found[key, pane] += value
    assert found == Counter({at: total for at, total in model.items() if first <= at[1] <= low + width})


def test_a_table_whose_panes_have_all_passed_is_empty(tmp_path):
    table = PaneTable("t", DirectoryStore(tmp_path, False))
    manifest = table.append(Manifest(), Writer(table.store, "op", "1"), frame_of([(1, 5, 1), (2, 9, 1)]), None)
    manifest = table.append(manifest, Writer(table.store, "op", "2"), frame_of([]), 9)
    assert manifest.pieces == ()
