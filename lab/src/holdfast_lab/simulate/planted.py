"""Bugs to plant into the shipped code: each breaks one rule, and the simulation must find it.

A rule that no simulation can tell from its absence is not checked by it. So each of these is searched for by a test,
and by `holdfast simulate --plant NAME`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from msgspec import structs

import holdfast.engine.committer
import holdfast.engine.replica_history
import holdfast.engine.start
import holdfast.meta.leases
import holdfast.store.durable
from holdfast.connect.sinks.database import DatabaseSink
from holdfast.connect.sinks.part_files import write_parts
from holdfast.connect.sinks.staging_directory import Staging
from holdfast.durability.checkpoints import Checkpoints
from holdfast.durability.retention import Retention
from holdfast.engine.committer import Committer
from holdfast.engine.epoch_input import Taken
from holdfast.engine.events import LookedUp
from holdfast.engine.instructions import CommitEpoch, How, Instruction
from holdfast.engine.loop import Loop
from holdfast.engine.machine import Machine
from holdfast.engine.planner import Planner
from holdfast.engine.restart import Restart
from holdfast.engine.start import Start
from holdfast.epoch.facts import merge_commits
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.record_change import record_of
from holdfast.epoch.transaction import Transaction
from holdfast.meta import Commit, MetaStore, OutputMeta, StreamMeta
from holdfast.meta.arrivals import Arrivals
from holdfast.meta.leases import Leases
from holdfast.pstream.pstream import PStream
from holdfast.replica.seats import SeatHolder, Seats
from holdfast.store import Private, SegmentWriter, make_directories, remove_tree, sync_directory, with_segments
from holdfast_lab.simulate.hosts import HostsWorld
from holdfast_lab.simulate.receiving import ReceivingWorld
from holdfast_lab.simulate.single_run import SingleRunWorld
from holdfast_lab.simulate.world import World

__all__ = ["PLANTED", "planted", "worlds_of"]

Plant = Callable[[], AbstractContextManager[None]]


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """`make` is given the real thing, and gives what stands in its place."""
    real = getattr(owner, name)
    setattr(owner, name, make(real))
    try:
        yield
    finally:
        setattr(owner, name, real)


def _instead(owner: Any, name: str, function: Any) -> Plant:
    return lambda: _replaced(owner, name, lambda _: function)


def _around(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    return lambda: _replaced(owner, name, make)


def _instead_of_both(owners: tuple[Any, Any], name: str, function: Any) -> Plant:
    @contextmanager
    def plant() -> Iterator[None]:
        with _replaced(owners[0], name, lambda _: function), _replaced(owners[1], name, lambda _: function):
            yield

    return plant


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _sweeps_all(self: PStream, right: Any, before: int | None = None) -> None:
    self.store.remove(list(self.store.names()), right)


def _last_entry(self: StreamMeta, connection: Any, stream: str, *, alone: bool) -> int:
    state = self._state(connection, stream)
    return 0 if state is None else state.number


def _adds_without_regard(self: Retention, epoch: int, files: frozenset[str], pinned: Any = ()) -> None:
    old = [number for number in self._epochs if number < self.keep_from(epoch) and number not in pinned]
    gone = frozenset[str]().union(*(self._epochs.pop(number) for number in old))
    self._epochs[epoch] = files
    self._store.remove(with_segments(gone), self._right)


def _leftovers_of_all(self: Retention, before: int | None = None) -> list[str]:
    return list(self._store.names())


def _commits_twice(real: Any) -> Any:
    def commit(self: MetaStore, connection: Any, lease: Any, epoch: int, record: str, now: float, **more: Any) -> bool:
        done: bool = real(self, connection, lease, epoch, record, now, **more)
        if not done:
            self.rewrite_commit(connection, lease, epoch, record)
        return done

    return commit


def _last_plan_wins(real: Any) -> Any:
    def plan(self: Transaction, plan: EpochPlan, now: float, epoch: int | None = None) -> tuple[EpochPlan, bool]:
        _, first = real(self, plan, now, epoch)
        return EpochPlan.decode(plan.encode()), first

    return plan


def _closes_all_but_one(real: Any) -> Any:
    def groups(self: OutputMeta, connection: Any) -> Any:
        return [replace(group, receipts=group.receipts[:1]) for group in real(self, connection)]

    return groups


def _delivers_again(real: Any) -> Any:
    def deliver(self: DatabaseSink, epoch: int, rows: Any, vector: Any) -> None:
        assert self._engine is not None
        assert self._rows is not None
        with self._engine.begin() as connection:
            if rows.height:
                connection.execute(self._rows.insert(), rows.to_dicts())

    return deliver


def _forgets_in_another_order(self: Staging, epoch: int, names: Any, right: Any) -> None:
    self._remove(self._closed(epoch).parent, right)
    self.discard(names, right)


def _shows_without_deciding(self: Staging, epoch: int, files: Any, target: Any, *, merge: bool) -> None:
    draft = self._closed(epoch).with_name("draft")
    remove_tree(draft, Private("a draft"))
    make_directories(draft.parent)
    write_parts(files, draft, merge=merge)
    os.rename(draft, target)
    sync_directory(target.parent)


@contextmanager
def _follows_what_is_planned() -> Iterator[None]:
    """It goes on to what it has run itself, as if that were committed."""

    def look_up(self: Committer, epoch: int) -> LookedUp:
        return LookedUp(epoch, True)

    with _replaced(Committer, "look_up", lambda _: look_up), _replaced(Committer, "commit", _follows_its_own):
        yield


def _follows_its_own(real: Any) -> Any:
    def commit(self: Committer, epoch: int, how: How) -> bool:
        if how is not How.ADOPTED:
            return bool(real(self, epoch, how))
        execution = self.run.executor.execution(epoch)
        mine, _ = merge_commits(self.run.progress.begin, execution.plan, execution.outcome)
        self._follow(epoch, mine)
        return True

    return commit


def _keeps_its_base_to_itself(self: Committer, epoch: int, record: EpochRecord) -> EpochRecord:
    found = self.run.meta.look_up(self.run.program.name, epoch)
    assert isinstance(found, Commit)
    kept = self._reconciled(epoch, record_of(found), record)
    self.delivery.publication.publish()
    return structs.replace(kept, base=record.base, policy=record.policy, reason=record.reason)


def _counts_at_once(real: Any) -> Any:
    def begin_copy(self: Checkpoints, epoch: int, record: Any) -> None:
        real(self, epoch, record)
        self._copied = self._job._point

    return begin_copy


def _commits_as_new(real: Any) -> Any:
    def commit(self: Machine, epoch: int) -> Instruction:
        instruction: Instruction = real(self, epoch)
        again = isinstance(instruction, CommitEpoch) and instruction.how is How.AGAIN
        return CommitEpoch(epoch, How.OWN) if again else instruction

    return commit


def _goes_by_its_own_plan(real: Any) -> Any:
    """The plan that was written first stays; this run does not go by it."""

    def write(self: Planner, epoch: int, taken: Taken, tasks: int, tables: Any) -> EpochPlan:
        winner: EpochPlan = real(self, epoch, taken, tasks, tables)
        return replace(winner, slices=taken.slices, positions=taken.positions, done=taken.done, open=taken.open)

    return write


def _told_once(real: Any) -> Any:
    """The machine hears of the seat that the run began with, and of no other."""

    def look_around(self: Loop) -> None:
        seat = self.machine.seat
        real(self)
        if self.machine.begun:
            self.machine.seat = seat

    return look_around


def _replays_all_but_one(real: Any) -> Any:
    def rewind(self: Restart, base: Any, tiers: Any) -> None:
        real(self, base, tiers)
        self.began += 1

    return rewind


def _reads_on_from_the_last_commit(real: Any) -> Any:
    def begin(self: Restart, *given: Any) -> None:
        real(self, *given)
        self.positions, self.done = dict(self.record.positions), dict(self.record.done)

    return begin


def _pins_nothing(real: Any) -> Any:
    return lambda self, epoch, files, pinned=(): real(self, epoch, files)


def _seats_keep_token(self: Seats, request: Any) -> bool:
    if not self._is_current(request.host, request.incarnation) or not self._is_free(self.primary, request):
        return False
    self.token = max(self.token, 1)
    self.primary = SeatHolder(request.host, request.incarnation, self.token)
    if self.secondary is not None and self.secondary.host == request.host:
        self.secondary = None
    return True


PLANTED: Mapping[str, Plant] = {
    # p-streams and the appender
    "the appender acknowledges before the sync": _instead(SegmentWriter, "sync", _nothing),
    "names of files are not synced": _instead(holdfast.store.durable, "sync_directory", _nothing),
    "batches that were taken before are taken again": _instead(Arrivals, "refuse_taken", _nothing),
    "the sweep of a stream ignores its entries": _instead(PStream, "sweep", _sweeps_all),
    "a stream is trimmed to its end": _instead(StreamMeta, "_released", _last_entry),
    # leases and seats
    "transactions do not check the token": _instead(Leases, "fence", _nothing),
    "a new primary has the token of the one before": _instead(Seats, "_seize", _seats_keep_token),
    "removals do not check the lease": _instead(Leases, "confirm", _nothing),
    # plans and commits
    "the last plan wins": _around(Transaction, "plan", _last_plan_wins),
    "an epoch is committed twice": _around(MetaStore, "write_commit", _commits_twice),
    "a run goes by its own plan where another was first": _around(Planner, "_write", _goes_by_its_own_plan),
    # machine, loop and restart
    "what is made again is committed as new": _around(Machine, "_commit", _commits_as_new),
    "the machine does not hear of a new seat": _around(Loop, "_look_around", _told_once),
    "a restart replays one epoch too few": _around(Restart, "_rewind", _replays_all_but_one),
    "a restart reads planned input again": _around(Restart, "__init__", _reads_on_from_the_last_commit),
    # sinks
    "the table is written again after a lost answer": _around(DatabaseSink, "deliver", _delivers_again),
    "a group is published in part": _around(OutputMeta, "groups", _closes_all_but_one),
    "a publication is forgotten in the commit": _instead(OutputMeta, "gather", lambda *_: 0),
    "what tells that a group is published goes first": _instead(Staging, "forget", _forgets_in_another_order),
    "a group is shown without deciding on it": _instead(Staging, "publish", _shows_without_deciding),
    "a gap leaves out what the table has": _instead(Start, "_delivered", lambda self, restart: False),
    # state
    "the retention removes what later epochs name": _instead(Retention, "add", _adds_without_regard),
    "the sweep ignores what retained epochs name": _instead(Retention, "leftovers", _leftovers_of_all),
    "the retention ignores what a checkpoint needs": _around(Retention, "add", _pins_nothing),
    "directories that another process has made are not synced": _instead(
        holdfast.engine.committer, "sync_places", _nothing
    ),
    "the state before a gap stays in memory": _instead(holdfast.engine.start, "persist_state", _nothing),
    "a checkpoint counts before it is made": _around(Checkpoints, "_begin_copy", _counts_at_once),
    # replicas
    "a secondary adopts what nobody has committed": _follows_what_is_planned,
    "the base of a primary that was outrun is not written": _instead(Committer, "_outrun", _keeps_its_base_to_itself),
    "what a secondary that is ahead begins again from goes": _instead(
        Committer, "_base_ahead", lambda self, epoch: set[int]()
    ),
    "what was left out is not told from what was run": _instead_of_both(
        (holdfast.engine.committer, holdfast.engine.replica_history), "check_history", _nothing
    ),
    "a secondary may always commit": _instead(holdfast.meta.leases, "_holds", lambda connection, lease: True),
}


_HOSTS_ONLY = frozenset(
    {
        "a gap leaves out what the table has",
        "a new primary has the token of the one before",
        "a secondary adopts what nobody has committed",
        "a secondary may always commit",
        "an epoch is committed twice",
        "the base of a primary that was outrun is not written",
        "the last plan wins",
        "the machine does not hear of a new seat",
        "the state before a gap stays in memory",
        "what a secondary that is ahead begins again from goes",
        "what tells that a group is published goes first",
        "what was left out is not told from what was run",
    }
)
_RECEIVING_ONLY = frozenset(
    {
        "a stream is trimmed to its end",
        "batches that were taken before are taken again",
        "the appender acknowledges before the sync",
        "the sweep of a stream ignores its entries",
    }
)


def worlds_of(name: str) -> tuple[type[World], ...]:
    """In which worlds a bug can show: the others do not run what it is in, or have nobody whom it would harm."""
    if name in _RECEIVING_ONLY:
        return (ReceivingWorld,)
    return (HostsWorld,) if name in _HOSTS_ONLY else (HostsWorld, ReceivingWorld, SingleRunWorld)


def planted(name: str) -> AbstractContextManager[None]:
    """Inside, the shipped code has this bug."""
    return PLANTED[name]()
