"""State as a table for people: the rows of any operator at any retained epoch."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from holdfast.errors import UnknownStateError
from holdfast.meta import Commit, MetaStore
from holdfast.state.manifest import POSITION, Manifest, read_piece
from holdfast.state.tables import DELETED
from holdfast.store import DirectoryStore

__all__ = ["read_state"]


def _commits(store: Path, pipeline: str) -> list[Commit]:
    if not (store / "meta.db").exists():
        raise UnknownStateError(f"there is no store at {store}", cure="give the store of the run with --store")
    meta = MetaStore(store)
    try:
        commits = meta.commits(pipeline)
        known = meta.pipelines()
    finally:
        meta.close()
    if not commits:
        cure = f"the store has: {', '.join(known)}" if known else "run the pipeline first"
        raise UnknownStateError(f"pipeline '{pipeline}' has no committed epoch in {store}", cure=cure)
    return commits


def read_state(store: Path, pipeline: str, operator: str, epoch: int | None = None) -> pl.DataFrame:
    """All rows of an operator's state after an epoch, by default the last.

    Hidden columns are shown under plain names: `table` where the operator has several, `pane` for window partials.
    """
    pipeline = _fragment(store, pipeline, operator)
    commits = _commits(store, pipeline)
    keys = _keys(store, pipeline, operator)
    chosen = commits[0] if epoch is None else next((c for c in commits if c.epoch == epoch), None)
    if chosen is None:
        kept = sorted(commit.epoch for commit in commits)
        raise UnknownStateError(
            f"epoch {epoch} is not retained", cure=f"choose one of {kept[0]} to {kept[-1]}", operator=operator
        )
    if operator not in chosen.record["state"]:
        raise UnknownStateError(
            f"pipeline '{pipeline}' has no stateful operator '{operator}'",
            cure=f"it has: {', '.join(sorted(chosen.record['state'])) or 'none'}",
        )
    files = DirectoryStore(store / pipeline / "state")
    manifests = [Manifest.from_json(part) for part in chosen.record["state"][operator]]
    tables = dict.fromkeys(piece.table for manifest in manifests for piece in manifest.pieces)
    frames = []
    for table in tables:
        for manifest in manifests:
            if not manifest.table(table):
                continue
            rows = _read_table(files, manifest, table, keys)
            frames.append(rows.insert_column(0, pl.lit(table).alias("table")) if len(tables) > 1 else rows)
    if not frames:
        return pl.DataFrame()
    return _shown(pl.concat(frames, how="diagonal"))


def _fragment(store: Path, pipeline: str, operator: str) -> str:
    """The fragment that holds the operator, where p-streams cut the pipeline."""
    if not (store / "meta.db").exists():
        return pipeline
    meta = MetaStore(store)
    try:
        for name in meta.pipelines():
            shape = meta.shape(name) if name.startswith(f"{pipeline}.") else None
            if shape is not None and operator in shape["operators"]:
                return name
    finally:
        meta.close()
    return pipeline


def _keys(store: Path, pipeline: str, operator: str) -> list[str]:
    meta = MetaStore(store)
    try:
        shape = meta.shape(pipeline) or {"operators": {}}
    finally:
        meta.close()
    return list(shape["operators"].get(operator, {}).get("keys", {}))


def _read_table(files: DirectoryStore, manifest: Manifest, table: str, keys: list[str]) -> pl.DataFrame:
    pieces = [read_piece(files, piece) for piece in manifest.table(table)]
    rows = pl.concat(pieces)
    if DELETED not in rows.columns:
        return rows
    # Pieces are oldest first, and the newest row of a key wins.
    newest = rows.unique(
        subset=[POSITION, *(key for key in keys if key in rows.columns)], keep="last", maintain_order=True
    )
    return newest.filter(~pl.col(DELETED)).drop(DELETED)


def _shown(rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.drop(POSITION, strict=False)
    plain = {name: name.removeprefix("__hf_") for name in rows.columns if name.startswith("__hf_")}
    taken = set(rows.columns)
    return rows.rename({name: short for name, short in plain.items() if short not in taken})
