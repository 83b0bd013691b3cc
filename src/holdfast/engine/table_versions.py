"""The versions of the lookup tables that a run joins with: which one the next plan names.

A table is checked when it is time, alongside the epochs. If it has changed, its rows are written to the store, in a
file that is named after its content and never changes, and plans name that file from then on. So an epoch that runs
again, here or on another host, is joined with the same rows. While a table cannot be read, the last version is used,
and a notice is given. A version that no plan names any longer is removed.
"""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import polars as pl

from holdfast.connect.lookups.lookup_table import Lookup
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.lookup_version import LookupVersion
from holdfast.epoch.plan import EpochPlan
from holdfast.errors import BadRowError, HoldfastError, LookupTableError
from holdfast.graph.stateless.stateless_operator import LookupUse, Stateless
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.pstream.punit import as_frame, open_table, write_content
from holdfast.store import DirectoryStore, Right
from holdfast.threads import Calls

__all__ = ["TableVersions", "bind_lookups"]

_READ = "the lookup table, which was asked for its rows (mark, read),"
_AGAIN_SECONDS = 5.0
"""At the latest, until a table is looked at again that could not be read."""
_SWEEP_SECONDS = 30.0
_TOUCHED_SECONDS = 60.0
_IN_USE_SECONDS = 600.0
"""A file that another host has touched within this time may be in a plan that is just being written."""
_LOOKS = 3
"""So often a table is read again that has changed while it was read."""


def bind_lookups(program: Program, versions: DirectoryStore) -> Program:
    """The program whose joins find the versions of their tables in a store."""
    bound = {
        name: node.with_versions(versions) if name in program.lookups and isinstance(node, Stateless) else node
        for name, node in program.nodes.items()
    }
    return replace(program, nodes=bound)


@dataclass(slots=True)
class _FollowedTable:
    """A table that a join uses. `answers` is where the version comes from that is being looked for."""

    name: str
    use: LookupUse
    lookup: Lookup
    version: LookupVersion | None = None
    due: float | None = None
    answers: Calls | None = None
    trouble: str | None = None
    touched: float | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of a look: a version, or why there is none."""

    version: LookupVersion | None = None
    error: Exception | None = None


class TableVersions:
    """The tables of one run. `patience` is how many seconds an epoch waits for the new version of a table that is due.
    `alone` says that no other host may plan with files of its own."""

    def __init__(
        self,
        program: Program,
        meta: MetaStore,
        versions: DirectoryStore,
        deadlines: Deadlines,
        right: Right,
        clock: Callable[[], float],
        ticks: Callable[[], float],
        *,
        patience: float,
        alone: bool,
    ) -> None:
        self._tables = {
            name: _FollowedTable(name, use, use.lookup)
            for name, use in program.lookups.items()
            if use.lookup is not None
        }
        self._pipeline = program.name
        self._meta = meta
        self._store = versions
        self._deadlines = deadlines
        self._right = right
        self._clock = clock
        self._ticks = ticks
        self._patience = patience
        self._alone = alone
        self._unswept = True
        self._swept: float | None = None

    # plans

    def current(self, epoch: int) -> dict[str, LookupVersion]:
        """The versions that the plan of an epoch is to name."""
        if any(table.version is None for table in self._tables.values()):
            self._recall(epoch)
        return {name: self._current(table, epoch) for name, table in self._tables.items()}

    def completed(self, plan: EpochPlan, epoch: int) -> EpochPlan:
        """A plan that was written before the pipeline had some of its joins, with the versions of now for these."""
        missing = [name for name in self._tables if name not in plan.tables]
        if not missing:
            return plan
        now = self.current(epoch)
        return replace(plan, tables={**plan.tables, **{name: now[name] for name in missing}})

    def planned(self, plan: EpochPlan) -> None:
        """An epoch was planned, by whichever host: what was seen there is not older than what is known here."""
        for name, version in plan.tables.items():
            table = self._tables.get(name)
            known = None if table is None else table.version
            newer = known is None or known.seen < version.seen
            if table is not None and newer and self._fits(table, version):
                table.version, self._unswept = version, True

    def _recall(self, epoch: int) -> None:
        """Go on with the versions of the last plan: they need not be read if the tables have not changed, and are there
        if they cannot be read."""
        last = self._meta.look_up(self._pipeline, epoch - 1)
        if last is not None:
            self.planned(EpochPlan.decode(last.plan))

    def _fits(self, table: _FollowedTable, version: LookupVersion) -> bool:
        """Whether a version is there, with the columns that the join is declared with now."""
        known = table.version
        if known is not None and known.unit == version.unit:
            return True
        try:
            return as_frame(open_table(self._store, version.unit), version.unit).schema == table.use.schema
        except HoldfastError:
            return False

    def _current(self, table: _FollowedTable, epoch: int) -> LookupVersion:
        now = self._ticks()
        if table.version is not None and not self._in_use(table.version, table, now):
            table.version, table.due = None, None
        if table.version is None:
            look = partial(self._look, table.lookup, table.use, None)
            found = self._deadlines.call(table.name, epoch, _READ, look)
            if found.error is not None:
                raise _unreadable(table, found.error).at(operator=table.name, epoch=epoch) from found.error
            self._take(table, found)
        elif table.answers is None and (table.due is None or now >= table.due):
            table.answers = answers = self._deadlines.threads.calls()
            look = partial(self._look, table.lookup, table.use, table.version)
            self._deadlines.threads.start(lambda: answers.put(look()), f"lookup-{table.name}")
            self._poll(table, epoch, self._patience)
        elif table.answers is not None:
            self._poll(table, epoch, None)
        assert table.version is not None
        return table.version

    def _in_use(self, version: LookupVersion, table: _FollowedTable, now: float) -> bool:
        """Tell other hosts that the file is used; False if it is gone."""
        if self._alone or (table.touched is not None and now - table.touched < _TOUCHED_SECONDS):
            return True
        table.touched = now
        return self._store.touch(version.unit.name)

    def _poll(self, table: _FollowedTable, epoch: int, seconds: float | None) -> None:
        """Take what a look has found, if it has come by now; with `seconds`, wait for it that long."""
        assert table.answers is not None
        try:
            found = table.answers.get(block=seconds is not None, timeout=seconds)
        except queue.Empty:
            return
        table.answers = None
        if isinstance(found.error, LookupTableError):
            raise found.error.at(operator=table.name, epoch=epoch) from found.error.__cause__
        self._take(table, found)

    def _take(self, table: _FollowedTable, found: _Found) -> None:
        every = table.lookup.every
        if found.version is None:
            assert table.version is not None
            seen = datetime.fromtimestamp(table.version.seen).astimezone().isoformat(sep=" ", timespec="seconds")
            table.trouble = (
                f"operator '{table.name}': its table cannot be read: {_said(found.error)}. Rows are joined with"
                f" the table as it was at {seen}"
            )
            every = min(every, _AGAIN_SECONDS)
        else:
            table.trouble = None
            if table.version is None or table.version.seen <= found.version.seen:
                table.version, self._unswept = found.version, True
        table.due = self._ticks() + every

    def _look(self, lookup: Lookup, use: LookupUse, known: LookupVersion | None) -> _Found:
        """The table as it is now. Called in parallel with the run: it must not change anything here."""
        try:
            for _ in range(_LOOKS):
                seen, mark = self._clock(), self._mark(lookup)
                if known is not None and mark is not None and mark == known.mark:
                    return _Found(replace(known, seen=seen))
                try:
                    rows = _checked(lookup.read(), use)
                except BadRowError as error:
                    wrong = LookupTableError(error.problem, cure=error.cure)
                    if mark == self._mark(lookup):
                        raise wrong from error
                    continue
                if mark == self._mark(lookup):
                    unit = write_content(self._store, rows, None if known is None else known.unit)
                    taken = known.taken if known is not None and known.unit == unit else seen
                    return _Found(LookupVersion(unit, mark, taken, seen))
            raise LookupTableError(
                f"{lookup.describe()} keeps changing while it is being read",
                cure="write the table under another name, and rename it when it is complete",
            )
        except Exception as error:  # noqa: BLE001 - what it means is decided where the answer is taken
            return _Found(error=error)

    def _mark(self, lookup: Lookup) -> str | None:
        """A value that shows whether a table, or what is read of it, has changed."""
        mark = lookup.mark()
        if mark is None:
            return None
        return hashlib.sha256(repr((lookup.describe(), str(lookup.schema), mark)).encode()).hexdigest()

    # people, and files

    def notices(self) -> list[str]:
        """The tables that cannot be read now."""
        return [table.trouble for table in self._tables.values() if table.trouble is not None]

    def sweep(self, *, now_or_never: bool = False) -> None:
        """Remove the versions that no plan names any more, now and then while there are new ones."""
        now = self._ticks()
        rests = self._swept is not None and now - self._swept < _SWEEP_SECONDS
        if not self._tables or not self._unswept or (rests and not now_or_never):
            return
        listed = list(self._store.names())  # first: what is written from now on is not among them
        self._swept, self._unswept = now, len(listed) > len(self._tables)
        commits, planned = self._meta.history(self._pipeline)
        plans = [EpochPlan.decode(text) for text in (*(one.plan for one in commits), *(one.plan for one in planned))]
        named = {version.unit.name for plan in plans for version in plan.tables.values()}
        named |= {table.version.unit.name for table in self._tables.values() if table.version is not None}
        if any(table.answers is not None for table in self._tables.values()):
            return  # nothing refers yet to what is being written
        gone = [name for name in listed if name not in named]
        if not self._alone:
            gone = [name for name in gone if self._store.is_old(name, self._clock(), _IN_USE_SECONDS)]
        self._store.remove(gone, self._right)


def _checked(rows: pl.DataFrame, use: LookupUse) -> pl.DataFrame:
    """The columns of the table that were declared, in their order; others are left out."""
    declared: Mapping[str, pl.DataType] = use.schema
    wrong = [
        f"'{name}' is {rows.schema[name]} instead of {dtype}" if name in rows.schema else f"'{name}' is missing"
        for name, dtype in declared.items()
        if rows.schema.get(name) != dtype
    ]
    if wrong:
        raise LookupTableError(
            f"the columns of the table have changed: {', '.join(wrong)}",
            cure="give the table the columns that it had, or declare the join with those that it has now",
        )
    return rows.select(list(declared))


def _unreadable(table: _FollowedTable, error: Exception) -> HoldfastError:
    """Why the run cannot start: there is no version of the table that could be used."""
    if isinstance(error, LookupTableError):
        return error
    cure = error.cure if isinstance(error, HoldfastError) else "check that it can be read from here"
    return LookupTableError(
        f"the table of the join cannot be read, and there is no earlier version of it: {_said(error)}",
        cure=f"{cure}; then start the pipeline again. The table is {table.lookup.describe()}",
    )


def _said(error: Exception | None) -> str:
    if isinstance(error, HoldfastError):
        return error.problem
    return f"{type(error).__name__}: {error}"
