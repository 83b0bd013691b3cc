"""The pipeline that simulated processes run, its input, and what must come of it.

It sums rows by key and window, into files and into a table. What both show at the end must be what plain arithmetic
says; where a recovery may leave a gap, they may lack rows and have none too many.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from functools import cached_property
from typing import Any

import polars as pl

import holdfast as hf
from holdfast.meta import Commands
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.scale_command import ScaleCommand
from holdfast.plan.source_sample import place_cuts
from holdfast.store import make_directories
from holdfast_lab.simulate.arriving_rows import ArrivingRows
from holdfast_lab.simulate.remote_database import RemoteDatabase
from holdfast_lab.simulate.world import Program, World

__all__ = ["WindowSums", "ask_to_scale"]

_PIPELINE = "p"
_WINDOWED = "sums"
"""The operator that has state."""
_SIZE = 10

Window = tuple[int, int]


class WindowSums:
    """In one world. `precise` is whether nothing may be missing. With `cut`, a p-stream is in between."""

    def __init__(self, world: World, *, precise: bool = True, recovery: str | None = None, cut: bool = False) -> None:
        self._world = world
        self._precise = precise
        self._cut = cut
        asks = not precise or recovery is not None
        self._guarantee = hf.Guarantee(recovery, "exactly-once" if precise else "gap") if asks else None
        self._every = world.draw.choice(("0s", "1s"))
        self.answer_seconds = world.draw.choice((0.0, 0.0, 0.3))
        """How long the source takes at most to tell what there is."""
        self._frames = self._input()
        self.database = RemoteDatabase(world.scheduler)
        self._url = self.database.serve_sinks()
        self._out = world.root / "out"
        self._taken = world.root / "taken"
        world.databases.append(self.database)

    def _input(self) -> list[tuple[float, pl.DataFrame]]:
        """Rows in the order of their times, so that none of them is late, and when they come. Some come at short
        intervals: hosts that plan side by side then find different input, and one that stalls falls behind."""
        draw = self._world.draw
        frames, ts, at = [], 0, 0.0
        for _ in range(draw.randrange(6, 11)):
            at += draw.uniform(0.0, draw.choice((1.4, 1.4, 0.3, 0.006)))
            rows = []
            for _ in range(draw.randrange(4)):
                ts += draw.randrange(5)
                rows.append((draw.randrange(2), ts, draw.randrange(1, 100)))
            frames.append((at, pl.DataFrame(rows, schema=ArrivingRows.schema, orient="row")))
        return frames

    def come_often(self, after: float, most: float) -> None:
        """Let the rows come from then on, at most so many seconds apart."""
        draw, at = self._world.draw, after
        frames = [frame for _, frame in self._frames]
        self._frames = [(at := at + draw.uniform(0.1, 1.0) * most, frame) for frame in frames]

    def hold_back(self, seconds: float) -> None:
        """What has not come yet comes so much later."""
        now = self._world.scheduler.time
        self._frames[:] = [(at if at <= now else at + seconds, frame) for at, frame in self._frames]

    def may_lack_rows(self) -> None:
        """A recovery may leave a gap."""
        self._precise = False
        self._guarantee = hf.Guarantee(None, "gap")

    def show_every_epoch(self) -> None:
        """In the files, each by itself."""
        self._every = "0s"

    def pipeline(self) -> hf.Pipeline:
        pipeline = hf.Pipeline(_PIPELINE, guarantee=self._guarantee)
        source = ArrivingRows(self._frames, lambda: self._world.scheduler.time, self._answer)
        rows = pipeline.source("rows", source, event_time="ts", time_unit="s")
        if self._cut:
            rows = rows.persist("kept", push_up=False)
        windows = rows.key_by("k").window(hf.window.tumbling(_SIZE), name=_WINDOWED)
        sums = windows.agg(total=hf.sum("v"), n=hf.count())
        sums.sink("files", hf.sink.ndjson(self._out, every=self._every))
        sums.sink("table", hf.sink.database(self._url, "sums"))
        return pipeline

    def _answer(self) -> None:
        if self.answer_seconds:
            scheduler = self._world.scheduler
            scheduler.step("the source answers", scheduler.random.random() * self.answer_seconds)

    @cached_property
    def fragments(self) -> list[str]:
        """Their names, the one with the windows at the end."""
        pipeline = self.pipeline()
        return [fragment.name for fragment in cut_pipeline(pipeline, place_cuts(pipeline, {})).fragments]

    def read(self, program: Program) -> None:
        """Take the files away as they appear, as readers may."""
        make_directories(self._taken)
        for number in itertools.count():
            program.threads.sleep(0.7)
            for place in sorted(self._out.glob("epoch=*")) if self._out.is_dir() else ():
                os.rename(place, self._taken / f"{number}-{place.name}")

    # judgement

    def check(self) -> None:
        expected = self._expected()
        self._compare("the files", self._files(), expected)
        self._compare("the table", self._table(), expected)

    def _expected(self) -> dict[Window, tuple[int, int]]:
        sums: dict[Window, tuple[int, int]] = {}
        for _, frame in self._frames:
            for k, ts, v in frame.rows():
                total, n = sums.get((k, ts // _SIZE), (0, 0))
                sums[k, ts // _SIZE] = (total + v, n + 1)
        return sums

    def _files(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for place in sorted([*self._out.glob("epoch=*/*.ndjson"), *self._taken.glob("*/*.ndjson")]):
            found += pl.read_ndjson(place.read_bytes()).to_dicts()
        return found

    def _table(self) -> list[dict[str, Any]]:
        cursor = self.database.connection.execute("SELECT * FROM sums")
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _compare(self, where: str, rows: list[dict[str, Any]], expected: dict[Window, tuple[int, int]]) -> None:
        violated = self._world.violated
        found = Counter((row["k"], row["window_start"] // _SIZE) for row in rows)
        for window, times in found.items():
            if window not in expected or times > 1:
                raise violated(f"{where}: window {window} is there {times} times")
        for row in rows:
            window = row["k"], row["window_start"] // _SIZE
            total, n = expected[window]
            if (row["total"], row["n"]) != (total, n) and (self._precise or row["total"] > total or row["n"] > n):
                found_here = f"{row['total']} of {row['n']} rows"
                raise violated(f"{where}: window {window} has {found_here}, and should have {total} of {n}")
        missing = expected.keys() - found.keys()
        if missing and self._precise:
            raise violated(f"{where}: windows {sorted(missing)} are missing")


def ask_to_scale(program: Program, fragment: str, partitions: int) -> None:
    """As `holdfast scale` does."""
    Commands(program.meta).ask(fragment, ScaleCommand(_WINDOWED, partitions).encode(), program.threads.now())
