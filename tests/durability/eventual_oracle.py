"""What eventual checkpoints must come to, computed the slow way from the log and the state.

`Auditor` is a witness for `eventual_harness.tell`: after each commit it walks the log backwards, record by record as
the paper says, until each open window was met, and compares what it finds with the account of the driver, with the
state, and with what the state was when each window left its footprint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from eventual_harness import Life

from holdfast.epoch.record import EpochRecord, Footing
from holdfast.graph.nodes import Stateful, StreamJoin, WindowAggregate
from holdfast.graph.windows import CountWindow
from holdfast.hidden_columns import FINGERPRINT, KIND, OPEN, PANE, POSITION, SEEN, TAU
from holdfast.operators.count_window.count_table import count_schema
from holdfast.operators.lift import combine_partials, state_groups
from holdfast.operators.pane_footprints import FOOTPRINTS
from holdfast.operators.panes import expired_panes, pane_shape
from holdfast.operators.single_key import single_keyed
from holdfast.plan.footprint_streams import output_stream
from holdfast.plan.program import Program
from holdfast.plan.watermarks import operator_watermark
from holdfast.pstream import read_punit
from holdfast.pstream.pstream import PStream
from holdfast.state.footprints import FootprintKind, sound
from holdfast.state.manifest import read_piece
from holdfast.state.tables import KeyedTable
from holdfast.store import DirectoryStore, last_epoch, with_segments

Name = tuple[Any, ...]
"""Of a window: its key, and the pane if it has one."""
Windows = dict[Name, list[str]]
"""What windows are made of, as sorted text, so that neither order nor pieces count."""


@dataclass(slots=True)
class Kept:
    """The state of an operator: its windows, and the epochs of their last footprints."""

    windows: Windows
    taus: dict[Name, int | None]


def is_counted(node: Stateful) -> bool:
    return isinstance(node, WindowAggregate) and isinstance(node.window, CountWindow)


def kept(program: Program, node: Stateful, record: EpochRecord, store: DirectoryStore) -> Kept:
    if is_counted(node):
        assert isinstance(node, WindowAggregate)
        return _kept_counts(single_keyed(node), record, store)
    names = [*node.keys, PANE]
    closed = closed_pane(program, node, record)
    still = pl.lit(True) if closed is None else pl.col(PANE) > closed
    windows: Windows = {}
    for table in ("left", "right") if isinstance(node, StreamJoin) else ("panes",):
        for rows in _pieces(record, node.name, table, store):
            rows = rows.filter(still)
            if isinstance(node, WindowAggregate):
                rows = combine_partials(rows.lazy(), node, state_groups(node), rows=False).collect()
                rows = rows.select(*state_groups(node), *node.state_schema)
            for name, line in _lines(rows.drop(POSITION), names):
                windows.setdefault(name, []).append(f"{table} {line}")
    taus: dict[Name, int | None] = {}
    for rows in _pieces(record, node.name, FOOTPRINTS, store):
        for *name, tau in rows.filter(still).select(*names, TAU).iter_rows():
            taus[tuple(name)] = tau
    return Kept({name: sorted(lines) for name, lines in windows.items()}, taus)


def _kept_counts(node: WindowAggregate, record: EpochRecord, store: DirectoryStore) -> Kept:
    windows: Windows = {}
    taus: dict[Name, int | None] = {}
    for manifest in record.state[node.name]:
        rows = KeyedTable("counts", node.keys, count_schema(node, traced=True), store).scan(manifest)
        for row in rows.iter_rows(named=True):
            name = tuple(row[key] for key in node.keys)
            assert name not in windows, "a key is in one partition"
            windows[name], taus[name] = [_count_line(row)], row[TAU]
    return Kept(windows, taus)


def _count_line(row: Mapping[str, Any]) -> str:
    return f"{row[SEEN]} {sorted(map(repr, row[OPEN] or []))}"


def _pieces(record: EpochRecord, operator: str, table: str, store: DirectoryStore) -> Iterator[pl.DataFrame]:
    """The rows of each partition, older ones first."""
    for manifest in record.state[operator]:
        frames = [read_piece(store, piece) for piece in manifest.table(table)]
        if frames:
            yield pl.concat(frames)


def _lines(rows: pl.DataFrame, names: list[str]) -> Iterator[tuple[Name, str]]:
    for row in rows.iter_rows(named=True):
        yield tuple(row[name] for name in names), repr(sorted((k, v) for k, v in row.items() if k not in names))


def closed_pane(program: Program, node: Stateful, record: EpochRecord) -> int | None:
    """The last pane that is closed, by the watermark."""
    assert isinstance(node, WindowAggregate | StreamJoin)
    mark = operator_watermark(program, node.name, record.greatest, record.done)
    return None if mark is None else expired_panes(pane_shape(node), mark)


def _operators(life: Life) -> Iterator[tuple[int, Stateful]]:
    """By number, because they may be renamed."""
    return enumerate(life.program.stateful)


def _only_what_is_needed(log: PStream, footing: Footing) -> None:
    """A log that nobody else writes to has the entries from T on, and no files but theirs, and segments that may still
    be written to."""
    entries = list(log.backwards())
    if footing.extent.marks:
        assert {entry.control[footing.name].epoch for entry in entries} == {m.epoch for m in footing.extent.marks}
    else:
        assert len(entries) <= 1
    named = {name for entry in entries for name in entry.files}
    assert all(log.store.found(name) is not None for name in named)
    growing = {name for name in log.store.names() if (last_epoch(name) or 0) > log.state().number}
    assert set(log.store.names()) <= with_segments(named) | growing


@dataclass(slots=True)
class Auditor:
    """Looks at every commit. `states` has the state after each epoch, as it was when it was first committed."""

    states: dict[int, dict[int, Kept]] = field(default_factory=dict)
    faultless: dict[int, dict[int, Kept]] | None = None
    """The states of a run without faults and footprints."""
    extents: int = 0
    checks: int = 0
    opens: int = 0
    recovered: int = 0

    def __call__(self, life: Life, epoch: int, replayed: bool) -> None:
        store = life.tiers.at("volatile")
        now = {number: kept(life.program, node, life.record, store) for number, node in _operators(life)}
        if replayed:
            if not life.lost:
                self._same_again(epoch, now, footprints=(life.record.policy or "").startswith("eventual"))
            return
        self.states[epoch] = now
        if self.faultless is not None:
            for name, state in now.items():
                assert state.windows == self.faultless[epoch][name].windows, f"the state after epoch {epoch}"
        if life.policy.footprints is not None:
            for number, node in _operators(life):
                self._audit(life, number, node, epoch, now[number])
            self._base_is_oldest(life, epoch)

    def _same_again(self, epoch: int, now: Mapping[int, Kept], *, footprints: bool) -> None:
        self.recovered += 1
        for name, state in now.items():
            before = self.states[epoch][name]
            assert state.windows == before.windows, f"the state after epoch {epoch} is another after recovery"
            assert not footprints or state.taus == before.taus, (
                f"the epochs of footprints after epoch {epoch} are others after recovery"
            )

    def _audit(self, life: Life, number: int, node: Stateful, epoch: int, now: Kept) -> None:
        footing = life.record.footings[node.name]
        extent = footing.extent
        assert extent.epoch == epoch
        if not is_counted(node):
            assert footing.closed == closed_pane(life.program, node, life.record)
        found, records = self._walked(life, node, footing, len(now.windows))
        assert found.keys() == now.windows.keys(), "the log has the windows that are open, and no others"
        assert {name: tau for name, (tau, _) in found.items()} == now.taus
        for name, (tau, lines) in found.items():
            assert lines == self.states[tau][number].windows[name], "a footprint is the state of its epoch"
        oldest = min((tau for tau, _ in found.values()), default=epoch)
        assert extent.windows == len(now.windows)
        assert extent.oldest == oldest
        if found:
            assert extent.q == sum(count for at, count in records.items() if at >= oldest)
            assert extent.u == sum(rows for at, rows in life.story.read.items() if at > oldest)
        else:
            assert (extent.q, extent.u) == (0, 0)
        if is_counted(node):
            is_open = sum(not lines[0].endswith(" []") for lines in now.windows.values())
            assert extent.open_windows == is_open
        self.extents += 1
        self._goal_is_met(life, node, footing)
        if output_stream(life.program, node.name) is None:
            _only_what_is_needed(PStream(life.meta, life.root, footing.stream, sync=False), footing)

    def _walked(
        self, life: Life, node: Stateful, footing: Footing, windows: int
    ) -> tuple[dict[Name, tuple[int, list[str]]], dict[int, int]]:
        """The newest footprint of each window, from the log's end backwards until so many were met; and how many
        records the epochs have that were looked at."""
        log = PStream(life.meta, life.root, footing.stream, sync=False)
        counted = is_counted(node)
        keys = single_keyed(node).keys if counted and isinstance(node, WindowAggregate) else node.keys
        names = [*keys] if counted else [*keys, PANE]
        found: dict[Name, tuple[int, list[str]]] = {}
        records: dict[int, int] = {}
        last: int | None = None
        for entry in log.backwards():
            control = entry.control.get(footing.name)
            if control is None:
                continue
            assert last is None or control.epoch < last, "control records are in the order of epochs"
            if len(found) >= windows and control.epoch != last:
                break
            last = control.epoch
            here: dict[Name, list[str]] = {}
            for unit in control.units:
                rows = read_punit(log.store, unit)
                assert sound(rows, control.epoch).all()
                records[control.epoch] = records.get(control.epoch, 0) + rows.height
                if control.epoch == footing.extent.epoch:
                    self._count_kinds(life, rows)
                for name, line in self._footprints(node, rows, names, footing.closed):
                    here.setdefault(name, []).append(line)
            for name, lines in here.items():
                found.setdefault(name, (control.epoch, sorted(lines)))
            records.setdefault(control.epoch, 0)
        return found, records

    def _count_kinds(self, life: Life, rows: pl.DataFrame) -> None:
        checks = int((rows[KIND] == FootprintKind.CHECK).sum())
        rules = life.policy.footprints
        assert rules is not None
        assert not (checks and rules.only_open)
        self.checks += checks
        self.opens += int((rows[KIND] == FootprintKind.OPEN).sum())

    @staticmethod
    def _footprints(
        node: Stateful, rows: pl.DataFrame, names: list[str], closed: int | None
    ) -> Iterator[tuple[Name, str]]:
        if is_counted(node):
            for row in rows.iter_rows(named=True):
                yield tuple(row[name] for name in names), _count_line(row)
            return
        rows = rows.drop(POSITION, KIND, FINGERPRINT)
        if closed is not None:
            rows = rows.filter(pl.col(PANE) > closed)
        if isinstance(node, StreamJoin):
            for side in ("left", "right"):
                waiting = rows.filter(pl.col(side).is_not_null()).select(*names, side).unnest(side)
                yield from ((name, f"{side} {line}") for name, line in _lines(waiting, names))
        else:
            yield from ((name, f"panes {line}") for name, line in _lines(rows, names))

    @staticmethod
    def _goal_is_met(life: Life, node: Stateful, footing: Footing) -> None:
        """With time enough, all windows older than the goal have got new footprints."""
        goal, rules = life.footprints._logs[node.name].goal, life.policy.footprints
        if goal is None or goal.spare is not None or rules is None:
            return
        if rules.spend >= 1e3 and life.script.batches >= 64:
            assert footing.extent.oldest >= goal.before

    @staticmethod
    def _base_is_oldest(life: Life, epoch: int) -> None:
        base = life.record.base
        oldest = min(footing.extent.oldest for footing in life.record.footings.values())
        if base is not None and base.eventual:
            assert base.epoch == oldest
        else:
            assert base is None, "after the first epoch nothing but footprints is gone back to"
            assert not life.record.files()
        assert life.checkpoints.keep_from >= oldest
