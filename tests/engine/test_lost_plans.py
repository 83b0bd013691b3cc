"""A plan that the power takes with it, before anybody else has gone by it: the epoch is planned anew."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.connect.sinks.file_sink import read_output
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.loop import Loop
from holdfast.meta import Lease, MetaStore

ROWS = 1_000


class PowerLossError(BaseException):
    """Nobody is there to catch it."""


class Counted(hf.source.Source):
    """So many rows at a time: an epoch that is planned anew may be another one."""

    schema = pl.Schema({"time": pl.Int64(), "key": pl.Int64()})
    keeps = True

    def __init__(self, step: int) -> None:
        self.step = step

    def start(self) -> dict[str, Any]:
        return {"row": 0}

    def take(self, position: Any, rows: int, pieces: int) -> hf.source.Take:
        first = position["row"]
        last = min(first + self.step, ROWS)
        slices = (hf.source.Slice(first, last - first, {"last": last}),) if last > first else ()
        return hf.source.Take(slices, {"row": last}, done=last == ROWS)

    def read(self, piece: hf.source.Slice) -> Iterator[hf.source.Chunk]:
        numbers = range(piece.base, piece.where["last"])
        yield hf.source.Chunk(pl.DataFrame({"time": list(numbers), "key": [number % 7 for number in numbers]}))


def counting(step: int, sink: Any) -> hf.Pipeline:
    pipeline = hf.Pipeline("counting")
    rows = pipeline.source("rows", Counted(step), event_time="time", time_unit="s")
    rows.key_by("key").window(hf.window.tumbling(50), name="counts").agg(n=hf.count()).sink("out", sink)
    return pipeline


@dataclass(slots=True)
class Disk:
    """What SQLite has synced: all that was in its log after a commit. Between a plan and the commit the power goes."""

    store: Path
    copy: Path
    dies_after: int
    synced: int = field(default=0, init=False)

    def before_step(self, loop: Loop) -> None:
        log = self.store / "meta.db-wal"
        if loop.machine.planned == loop.machine.committed:
            self.synced = log.stat().st_size
        elif loop.machine.committed == self.dies_after:
            assert log.stat().st_size > self.synced, "the plan is behind what was synced"
            self.copy.mkdir()
            shutil.copy(self.store / "meta.db", self.copy)
            (self.copy / "meta.db-wal").write_bytes(log.read_bytes()[: self.synced])
            raise PowerLossError

    def back(self) -> None:
        """The power is back."""
        for left in self.store.glob("meta.db*"):
            left.unlink()
        for kept in self.copy.iterdir():
            shutil.move(kept, self.store)


def run(pipeline: hf.Pipeline, store: Path, platform: InProcessPlatform, meta: MetaStore | None = None) -> None:
    options = hf.RunOptions(store=store, checkpoint="delta", until_idle=True, tasks=1, overlap=False)
    FragmentRun(pipeline, platform, options, meta=meta).run()


def test_an_epoch_whose_plan_is_lost_with_the_power_is_planned_anew(tmp_path: Path) -> None:
    run(counting(100, hf.sink.parquet(tmp_path / "expected")), tmp_path / "other", InProcessPlatform())
    out, store = tmp_path / "out", tmp_path / "store"
    disk = Disk(store, tmp_path / "copy", dies_after=3)
    with pytest.raises(PowerLossError):
        run(counting(100, hf.sink.parquet(out)), store, InProcessPlatform(before_step=disk.before_step))
    disk.back()
    meta = MetaStore(store)
    with meta.writing() as connection:
        assert connection.execute(sa.text("SELECT max(epoch) FROM epochs")).scalar_one() == 3
        connection.execute(sa.text("UPDATE leases SET expires = 0"))  # this process lives, unlike the one it stands for
    meta.close()
    run(counting(130, hf.sink.parquet(out)), store, InProcessPlatform())
    found, expected = (read_output(tmp_path / name).sort("key", "window_start") for name in ("out", "expected"))
    assert found.equals(expected)


class Noted(MetaStore):
    """Notes which transactions of epochs are synced."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.synced: list[bool] = []

    @contextmanager
    def fenced(
        self, lease: Lease, epoch: int | None = None, expires: float | None = None, *, synced: bool = True
    ) -> Iterator[sa.Connection]:
        with super().fenced(lease, epoch, expires, synced=synced) as connection:
            yield connection
        if epoch is not None:
            self.synced.append(synced)


def test_a_plan_is_synced_where_a_sink_is_called_before_the_commit(tmp_path: Path) -> None:
    sinks = {"files": hf.sink.parquet(tmp_path / "out"), "rows": hf.sink.collect()}
    for name, sink in sinks.items():
        store = tmp_path / name
        meta = Noted(store)
        run(counting(250, sink), store, InProcessPlatform(), meta)
        plans, commits = (list(itertools.islice(meta.synced, first, 8, 2)) for first in (0, 1))
        assert plans == [name == "rows"] * 4
        assert commits == [True] * 4


@pytest.mark.parametrize(("sync", "levels"), [(True, [1, 2, 1]), (False, [0, 0, 0])])
def test_a_transaction_syncs_by_itself_unless_it_may_wait_for_the_next(
    tmp_path: Path, sync: bool, levels: list[int]
) -> None:
    meta, found = MetaStore(tmp_path, sync=sync), []
    for synced in (False, True, False):
        with meta.writing(synced=synced) as connection:
            found.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
    assert found == levels
    meta.close()
