"""What keyed processes are tested with: a process as a machine that takes one row or timer at a time, the machine on
tables as the engine calls it, and the machine row by row in plain Python, which says what must come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl
from oracles import BOUND, seen_watermarks

import holdfast as hf
from strategies import Given

STATE = {"n": pl.Int64, "since": pl.Int64}
OUTPUT = {"k": pl.Int64, "at": pl.Int64, "what": pl.String, "n": pl.Int64}
EVENTS = {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()}
KEEP, STOP = "keep", None


@dataclass(slots=True)
class Machine:
    """What a process does with one row or one timer of a key. `back` puts out the time at which the key began instead
    of the row's; a value of 0 deletes, of 1 leaves the state as it is, a negative one takes the timer away, any other
    sets it."""

    delay: int
    back: bool = False
    tick: int | None = None
    timers: bool = True

    def on_row(self, state: tuple[int, int] | None, ts: int, v: int | None) -> tuple[Any, list[Any], Any]:
        n, since = state or (0, ts)
        out = [(since if self.back else ts, "row", n + 1)]
        if v == 0:
            return None, out, STOP if self.timers else KEEP
        if v == 1:
            return state, out, KEEP
        if not self.timers:
            return (n + 1, since), out, KEEP
        timer = STOP if v is not None and v < 0 else ts + self.delay + (v or 0)
        return (n + 1, since), out, timer

    def on_timer(self, state: tuple[int, int], at: int) -> tuple[Any, list[Any], Any]:
        n, since = state
        timer = at + self.tick if self.tick is not None and n < 4 else STOP
        return (n + 1, since), [(since if self.back else at, "timer", n)], timer

    def __call__(self, rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        """The machine on tables, key by key."""
        known = {k: (n, since) for k, n, since in state.select("k", *STATE).rows()}
        held, touched, timers, out = dict(known), set(), {}, []

        def take(k: object, outcome: tuple[Any, list[Any], Any]) -> None:
            after, made, timer = outcome
            out.extend((k, *row) for row in made)
            if after != held.get(k) or timer != KEEP:
                touched.add(k)
            held[k] = after
            if timer != KEEP:
                timers[k] = timer

        for ts, k, v in rows.select("ts", "k", "v").rows():
            take(k, self.on_row(held.get(k), ts, v))
        for k, at in context.timers.rows():
            take(k, self.on_timer(held[k], at))
        written = [k for k in touched if held.get(k) is not None]
        gone = [k for k in touched if held.get(k) is None and k in known]
        key = {"k": pl.Int64}
        return hf.Step(
            output=pl.DataFrame(out, schema=OUTPUT, orient="row"),
            upserts=pl.DataFrame([(k, *held[k]) for k in written], schema={**key, **STATE}, orient="row"),
            deletes=pl.DataFrame({"k": gone}, schema=key),
            timers=pl.DataFrame(
                [(k, at) for k, at in timers.items() if k in written], schema={**key, "at": pl.Int64}, orient="row"
            ),
        )


@dataclass(slots=True)
class RowByRow:
    """The oracle: one row after the other, each after the timers of its key that its watermark has passed."""

    machine: Machine
    ttl: int | None = None
    state: dict[Any, Any] = field(default_factory=dict)
    timers: dict[Any, int] = field(default_factory=dict)
    touched: dict[Any, int] = field(default_factory=dict)
    marks: dict[Any, int | None] = field(default_factory=dict)
    out: list[dict[str, Any]] = field(default_factory=list)

    def run(self, given: Given) -> list[dict[str, Any]]:
        return self.over(seen_watermarks(given), given)

    def over(self, rows: list[dict[str, Any]], given: Given) -> list[dict[str, Any]]:
        """Some rows of a stream."""
        for row in rows:
            self._row(row["k"], row["ts"], row["v"], row[BOUND])
        farthest = max((row["ts"] for row in given.rows), default=0) - given.lateness
        for k in list(self.timers):
            self._fire(k, farthest)
        for k in list(self.timers):
            self._fire(k, self.timers[k], again=False)
        return self.out

    def _row(self, k: object, ts: int, v: int | None, mark: int | None) -> None:
        if mark is not None:
            self._fire(k, mark)
        now = ts if mark is None else max(ts, mark)
        if self.ttl is not None and k in self.state and k not in self.timers and now > self.touched[k] + self.ttl:
            del self.state[k]
        if k not in self.state:
            self.touched.pop(k, None)
        self.marks[k] = mark
        self._take(k, self.machine.on_row(self.state.get(k), ts, v), ts)

    def _fire(self, k: object, limit: int, again: bool = True) -> None:
        while k in self.timers and self.timers[k] <= limit:
            at = self.timers.pop(k)
            before = self.marks.get(k)
            self.marks[k] = at - 1 if before is None else max(at - 1, before)
            self._take(k, self.machine.on_timer(self.state[k], at), at)
            if not again:
                return

    def _take(self, k: object, outcome: tuple[Any, list[Any], Any], time: int) -> None:
        after, made, timer = outcome
        self.out += [{"k": k, "ts": at, "what": what, "n": n, BOUND: self.marks[k]} for at, what, n in made]
        if after is None:
            self.state.pop(k, None)
            self.timers.pop(k, None)
            return
        self.state[k] = after
        self.touched[k] = max(time, self.touched.get(k, time))
        if timer is STOP:
            self.timers.pop(k, None)
        elif timer != KEEP:
            self.timers[k] = timer
