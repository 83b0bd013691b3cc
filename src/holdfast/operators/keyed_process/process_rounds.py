"""The calls of a keyed process: round by round, rows and timers of each key in their order.

For each key the order is that of the source: a timer that is due by the watermark before a row fires before that row,
and state whose time-to-live is over by then is gone for it. A round takes the next segment of every key that has any
left (`segments.py`), so that the function is called on many keys at once; most epochs need one round. What rounds have
come to is written to the tables once, at the end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.errors import OperatorError
from holdfast.graph.nodes import KeyedProcess, ProcessContext
from holdfast.hidden_columns import BOUND, POSITION, ROW_TIME, TIMER, TOUCHED
from holdfast.operators.key_numbers import NumberedKeys
from holdfast.operators.keyed_process.process_output import Returned, call_function
from holdfast.operators.keyed_process.process_segments import LONG_AGO, NEVER, SegmentedRows, Segmenting, first_at_least
from holdfast.operators.step import StepContext
from holdfast.state.changed_keys import repeated_key, strange_key

__all__ = ["AmbiguousError", "ProcessRounds"]

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_MOST_PIECES = 16


class AmbiguousError(Exception):
    """What was emitted may be behind the watermark of the row that caused it, and that row is not known."""


class ProcessRounds:
    """The calls for one partition's epoch. `rows` have their watermarks in BOUND; `known` is the state of the keys.

    `grain` is the unit in which the watermark of what is emitted must be right. Without it, rows are emitted without a
    watermark, and it is an `AmbiguousError` if one of them, going by `timed`, could lie behind its own.
    """

    def __init__(
        self,
        node: KeyedProcess,
        rows: pl.DataFrame,
        keys: NumberedKeys,
        known: pl.DataFrame,
        context: StepContext,
        *,
        grain: int | None,
        timed: bool,
    ) -> None:
        self._node, self._frame, self._keys, self._context = node, rows, keys, context
        self._grain, self._timed = grain, timed
        count = len(keys)
        numbers = keys.find(known)
        self._pieces = [known.select(*node.keys, *node.state.names())]
        self._slot = np.full(count, -1, dtype=np.int64)
        self._slot[numbers] = np.arange(known.height)
        self._known = self._slot >= 0
        self._alive = self._known.copy()
        self._touched = np.full(count, LONG_AGO)
        self._timer = np.full(count, NEVER)
        if node.ttl is not None:
            self._touched[numbers] = known[TOUCHED].fill_null(LONG_AGO).to_numpy()
        if node.timers:
            self._timer[numbers] = known[TIMER].fill_null(NEVER).to_numpy()
            if context.watermark_before is not None:  # what lies behind it has fired
                self._timer[self._timer <= context.watermark_before] = NEVER
        self._timer_before = self._timer.copy()
        self._changed = np.zeros(count, dtype=bool)
        self._mark = np.full(count, LONG_AGO)
        self._output: list[pl.DataFrame] = []
        self._key_of_row = keys.find(rows, rows[POSITION].to_numpy())
        self._rows = SegmentedRows.of(
            self._key_of_row,
            count,
            rows[ROW_TIME].fill_null(LONG_AGO).to_numpy(),
            rows[BOUND].fill_null(LONG_AGO).to_numpy(),
            context.watermark_after,
            self._touched,
            Segmenting(node.ttl, node.delay if node.timers else None, grain),
        )

    def run(self) -> None:
        rows, at = self._rows, self._rows.starts.copy()
        active = np.flatnonzero(rows.ends > rows.starts)
        while active.size:
            while (due := active[self._timer[active] <= rows.watermarks[at[active]]]).size:
                self._fire(due)
            self._forget(active, at[active])
            stop = first_at_least(rows.watermarks, at[active], rows.stops[at[active]], self._timer[active])
            self._take(active, at[active], stop)
            at[active] = stop
            active = active[stop < rows.ends[active]]
        self._end()

    def _end(self) -> None:
        """After the rows, the timers that the watermark has passed, and those that they set in turn.

        When the sources have ended, all timers are due. They fire once more, last; what is set by then fires no more,
        or a process that ticks would tick forever.
        """
        limit = self._context.watermark_after
        if not self._node.timers or limit is None:
            return
        ended = limit >= END_OF_TIME
        if ended:
            limit = LONG_AGO if self._context.farthest is None else self._context.farthest
        while (due := np.flatnonzero(self._timer <= limit)).size:
            self._fire(due)
        if ended and (left := np.flatnonzero(self._timer < NEVER)).size:
            self._fire(left)

    def _forget(self, keys: Ints, first: Ints) -> None:
        """State whose time-to-live is over by the next row of its key is gone, unless a timer is pending."""
        if self._node.ttl is None:
            return
        now = np.maximum(self._rows.times[first], self._rows.watermarks[first])
        over = (self._touched[keys] > LONG_AGO) & (now > self._touched[keys] + self._node.ttl)
        gone = keys[over & self._alive[keys] & (self._timer[keys] == NEVER)]
        self._alive[gone] = False
        self._touched[gone] = LONG_AGO
        self._changed[gone] = True

    def _take(self, keys: Ints, start: Ints, stop: Ints) -> None:
        """Call the function on the rows from `start` to `stop` of each of the keys."""
        rows, lengths = self._rows, stop - start
        begins = np.cumsum(lengths) - lengths
        places = np.repeat(start - begins, lengths) + np.arange(int(lengths.sum()))
        made = self._ask(keys, np.sort(rows.order[places]), None, rows.marks[start], rows.marks[stop - 1])
        times = rows.times[places]
        if made.timers.height:
            earliest = np.full(len(self._keys), LONG_AGO)
            earliest[keys] = np.minimum.reduceat(times, begins) + self._node.delay
            self._check_delay(made.timers, earliest)
        self._apply(keys, made, np.maximum.reduceat(times, begins))
        self._mark[keys] = rows.marks[stop - 1]

    def _fire(self, keys: Ints) -> None:
        """Call the function on the timers of these keys."""
        at = self._timer[keys].copy()
        self._timer[keys] = NEVER
        self._changed[keys] = True
        # The watermark that was there just before the timer was due: a window that ends with the timer is still open.
        self._mark[keys] = np.maximum(at - 1, self._mark[keys])
        made = self._ask(keys, np.empty(0, dtype=np.int64), at, self._mark[keys], self._mark[keys])
        if made.timers.height:
            fired = np.full(len(self._keys), LONG_AGO)
            fired[keys] = at
            again = self._keys.find(made.timers)
            stuck = made.timers["at"].fill_null(NEVER).to_numpy() <= fired[again]
            if stuck.any():
                name = made.timers.select(self._node.keys).row(int(np.flatnonzero(stuck)[0]))
                raise OperatorError(
                    f"the timer of the key {name} fired and was set again, but not later",
                    cure="set a timer after the one that fired, or none",
                )
        self._apply(keys, made, at)

    def _check_delay(self, timers: pl.DataFrame, earliest: Ints) -> None:
        early = timers["at"].fill_null(NEVER).to_numpy() < earliest[self._keys.find(timers)]
        if early.any():
            name = timers.select(self._node.keys).row(int(np.flatnonzero(early)[0]))
            delay = self._node.delay
            raise OperatorError(
                f"the timer of the key {name} is before the row that sets it"
                if not delay
                else f"the timer of the key {name} is less than {delay} {self._node.unit} after the row that sets it",
                cure="set timers at or after the time of the row"
                if not delay
                else "declare a shorter delay with timers=",
            )

    def _ask(self, keys: Ints, rows: Ints, at: Ints | None, marks: Ints, last_marks: Ints) -> Returned:
        """Call the function for these keys: on `rows`, or on their timers, which are due `at`. What it emits is
        kept with its watermark: of `marks`, that of the key it is for."""
        if self._grain is None:
            made = self._call(keys, rows, at)
            if self._timed and made.output.height:
                assert self._node.time is not None
                earliest = made.output.select(self._node.time.expr().min()).item()
                if earliest is not None and earliest < last_marks.max():
                    raise AmbiguousError
            self._keep(made.output, None)
            return made
        marks = np.where(marks == LONG_AGO, marks, marks // self._grain * self._grain)
        if (marks == marks[0]).all():
            made = self._call(keys, rows, at)
            self._keep(made.output, np.full(made.output.height, marks[0]))
            return made
        node = self._node
        if all(node.schema.get(key) == self._keys.frame.schema[key] for key in node.keys):
            made = self._call(keys, rows, at)
            mark_of = np.full(len(self._keys) + 1, NEVER)  # the last is for keys that were not asked about
            mark_of[keys] = marks
            found = mark_of[self._keys.find(made.output)]
            if (found < NEVER).all():
                self._keep(made.output, found)
                return made
        parts = []
        for mark in np.unique(marks):
            mine = marks == mark
            some = rows[np.isin(self._key_of_row[rows], keys[mine])]
            parts.append(self._call(keys[mine], some, None if at is None else at[mine]))
            self._keep(parts[-1].output, np.full(parts[-1].output.height, mark))
        names = ("output", "upserts", "deletes", "timers")
        return Returned(*(pl.concat([getattr(part, name) for part in parts]) for name in names))

    def _call(self, keys: Ints, rows: Ints, at: Ints | None) -> Returned:
        frame = self._frame if len(rows) == self._frame.height else self._frame[rows]
        timers = self._keys.frame[keys].with_columns(pl.Series("at", at)) if at is not None else self._no_timers
        living = keys[self._alive[keys]]
        if len(self._pieces) > _MOST_PIECES:
            self._pieces = [pl.concat(self._pieces, rechunk=True)]
        state = pl.concat(self._pieces)[self._slot[living]]
        context = ProcessContext(self._context.epoch, self._context.watermark_after, timers, self._context.clock)
        return call_function(self._node, frame, state, context)

    @property
    def _no_timers(self) -> pl.DataFrame:
        return self._keys.frame.clear().with_columns(pl.Series("at", [], pl.Int64))

    def _keep(self, output: pl.DataFrame, marks: Ints | None) -> None:
        if self._grain is not None:
            mark = pl.Series(BOUND, marks)
            output = output.with_columns(mark.replace(LONG_AGO, None))
        self._output.append(output)

    def _apply(self, keys: Ints, made: Returned, newest: Ints) -> None:
        """Take over what a call has changed; `newest` is when rows or timers have touched the keys."""
        written, deleted = self._keys.find(made.upserts), self._keys.find(made.deletes)
        self._check_written(keys, made, written, deleted)
        before = np.where(self._alive[keys], self._touched[keys], LONG_AGO)
        self._slot[written] = np.arange(made.upserts.height) + sum(piece.height for piece in self._pieces)
        self._pieces.append(made.upserts)
        self._alive[written] = True
        self._alive[deleted] = False
        self._timer[deleted] = NEVER
        if made.timers.height:
            self._timer[self._keys.find(made.timers)] = made.timers["at"].fill_null(NEVER).to_numpy()
        self._changed[written] = True
        self._changed[deleted] = True
        if self._node.ttl is not None:
            touched = np.where(self._alive[keys], np.maximum(before, newest), LONG_AGO)
            self._changed[keys] |= self._alive[keys] & (touched != self._touched[keys])
            self._touched[keys] = touched

    def _check_written(self, keys: Ints, made: Returned, written: Ints, deleted: Ints) -> None:
        changed = np.concatenate([written, deleted])
        asked = np.zeros(len(self._keys) + 1, dtype=bool)
        asked[keys] = True
        strange = np.flatnonzero(~asked[changed])
        counts = np.bincount(changed[changed >= 0], minlength=1)
        if not strange.size and counts.max() <= 1:
            return
        if strange.size:
            names = pl.concat([made.upserts.select(self._node.keys), made.deletes])
            raise strange_key(names.row(int(strange[0])))
        raise repeated_key(self._keys.frame.row(int(counts.argmax())))

    @property
    def output(self) -> pl.DataFrame:
        return pl.concat(self._output) if self._output else pl.DataFrame(schema=self._node.schema)

    @property
    def upserts(self) -> pl.DataFrame:
        """The state that has changed, with the hidden columns."""
        keys = np.flatnonzero(self._alive & self._changed)
        hidden = []
        if self._node.ttl is not None:
            hidden.append(pl.Series(TOUCHED, self._touched[keys]))
        if self._node.timers:
            hidden.append(pl.Series(TIMER, self._timer[keys]).replace(NEVER, None))
        return pl.concat(self._pieces)[self._slot[keys]].with_columns(hidden)

    @property
    def deletes(self) -> pl.DataFrame:
        return self._keys.frame[np.flatnonzero(self._known & ~self._alive)]

    @property
    def timers(self) -> pl.DataFrame:
        """The timers that are new and pending."""
        keys = np.flatnonzero(self._alive & (self._timer < NEVER) & (self._timer != self._timer_before))
        return self._keys.frame[keys].with_columns(pl.Series("at", self._timer[keys]))
