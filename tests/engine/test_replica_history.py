"""A primary beside a secondary: a recovery that leaves a gap, of which the secondary has run what is left out, and a
primary that is behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl
import pytest
import sqlalchemy as sa

import holdfast as hf
from holdfast.engine.committer import Committer
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.loop import Loop
from holdfast.engine.options import RunOptions, hosted
from holdfast.engine.roles import Role, Seat
from holdfast.engine.start import Start
from holdfast.epoch.record import Base, EpochRecord
from holdfast.epoch.record_change import record_of
from holdfast.errors import EpochFailedError
from holdfast.graph.policies import CheckpointPolicy
from holdfast.meta import Lease, MetaStore
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Beat, Enlist, Resign, Seize
from holdfast.store import DirectoryStore

RARELY = hf.checkpoint.interval("1h")
ROWS = pl.DataFrame({"ts": range(60), "k": [number % 3 for number in range(60)]})


@dataclass
class Authority:
    """What a test has given to a host."""

    lease: Lease
    seat: Seat
    differing: list[int] = field(default_factory=list)

    def renew(self) -> None:
        """The test says when it is another."""

    def ready(self, role: Role | None) -> None: ...

    def differs(self, epoch: int, what: str) -> None:
        self.differing.append(epoch)

    def __enter__(self) -> Authority:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass
class Hosts:
    """Hosts of one pipeline, whose runs take a step when the test says so."""

    root: Path
    scheme: Scheme
    ends: ExitStack
    policy: CheckpointPolicy = RARELY
    table: str | None = None
    """The URL of a database that gets the results, too."""

    def __post_init__(self) -> None:
        self.meta = MetaStore(self.root / "store", sync=False)
        self.ends.callback(self.meta.close)
        self.agreement = Agreement(self.meta, "test", lambda: 0.0)
        self.agreement.open("p", self.scheme)

    def seat(self, host: str, kind: type[Seize | Enlist]) -> int:
        agreed = self.agreement.ask({"p": [Beat(host, 1, 0, None), kind(host, 1, None, None)]})["p"].seats
        seat = agreed.primary if kind is Seize else agreed.secondary
        assert seat is not None
        assert seat.host == host
        return seat.token

    def run(self, host: str, role: Role, token: int) -> tuple[Loop, Authority]:
        lead = role is Role.LEAD
        shared = self.scheme.both_commit
        authority = Authority(
            self.agreement.lease("p", token, shared=not lead), Seat(role, shared=shared, precise=False, replica=True)
        )
        options = RunOptions(
            store=self.root / "store", volatile=self.root / host, checkpoint=self.policy, partitions=1, tasks=1,
            least_rows=10, most_rows=10, durable=False, overlap=False, poll=0.0,
        )  # fmt: skip
        run = FragmentRun(self.pipeline(), InProcessPlatform(), hosted(options, host), authority=authority)
        run.loop.pause = run.loop.patience = 0.0
        return self.ends.enter_context(run.seated()), authority

    def pipeline(self) -> hf.Pipeline:
        pipeline = hf.Pipeline("p")
        rows = pipeline.source("rows", hf.source.memory(ROWS), event_time="ts", time_unit="s")
        counts = rows.key_by("k").window(hf.window.tumbling("15s")).agg(n=hf.count())
        counts.sink("out", hf.sink.ndjson(self.root / "out", every="0s"))
        if self.table is not None:
            counts.sink("table", hf.sink.database(self.table, "counts"))
        return pipeline

    def records(self) -> dict[int, EpochRecord]:
        return {commit.epoch: record_of(commit) for commit in self.meta.commits("p")}


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def go_on(loop: Loop, until: int, steps: int = 400) -> None:
    for _ in range(steps):
        if loop.machine.begun and loop.machine.committed >= until:
            return
        loop.step()
    raise AssertionError(f"epoch {until} was not reached")


@pytest.mark.parametrize(("scheme", "role"), [(ACTIVE_REPLICATION, Role.SHARE), (ACTIVE_STANDBY, Role.FOLLOW)])
def test_a_secondary_that_has_run_what_is_left_out_begins_again(
    tmp_path: Path, ends: ExitStack, scheme: Scheme, role: Role
) -> None:
    hosts = Hosts(tmp_path, scheme, ends)
    first = hosts.seat("a", Seize)
    loop, _ = hosts.run("a", Role.LEAD, first)
    go_on(loop, 2)
    shutil.rmtree(tmp_path / "a")  # its machine is gone, and with it the state
    hosts.agreement.ask({"p": [Resign(first)]})
    leading = hosts.seat("b", Seize)
    secondary, authority = hosts.run("c", role, hosts.seat("c", Enlist))
    go_on(secondary, 2)  # it runs both again
    primary, _ = hosts.run("b", Role.LEAD, leading)
    go_on(primary, 2)
    assert hosts.records()[2].gap == 0

    def both_go_on() -> None:
        for _ in range(100):
            secondary.step()
            if role is Role.FOLLOW:
                primary.step()

    with pytest.raises(EpochFailedError, match="epochs were left out that it has run"):
        both_go_on()
    assert authority.differing == []
    go_on(primary, 4)
    assert {record.gaps for epoch, record in hosts.records().items() if epoch >= 2} == {1}
    again: Any
    again, authority = hosts.run("c", role, authority.lease.token)
    go_on(again, 3)
    assert authority.differing == []


def test_what_a_secondary_commits_while_a_gap_is_being_left_is_not_left_out(
    tmp_path: Path, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state would be swept as that of an epoch that nobody has run."""
    hosts = Hosts(tmp_path, ACTIVE_REPLICATION, ends, hf.checkpoint.delta())
    first = hosts.seat("a", Seize)
    loop, _ = hosts.run("a", Role.LEAD, first)
    go_on(loop, 2)
    while loop.machine.planned < 3:
        loop.step()
    hosts.agreement.ask({"p": [Resign(first)]})
    leading = hosts.seat("b", Seize)
    secondary, _ = hosts.run("c", Role.SHARE, hosts.seat("c", Enlist))
    go_on(secondary, 2)
    leave_gap = Start._leave_gap

    def late(self: Start, *given: Any) -> bool:
        go_on(secondary, 3)
        return leave_gap(self, *given)

    monkeypatch.setattr(Start, "_leave_gap", late)
    primary, _ = hosts.run("b", Role.LEAD, leading)
    go_on(primary, 3)
    monkeypatch.undo()
    records = hosts.records()
    assert {records[3].gap, records[3].gaps} == {None, 0}
    state = DirectoryStore(tmp_path / "store" / "p" / "state")
    assert all(state.found(name) is not None for record in records.values() for name in record.files())
    go_on(primary, 5)


def test_a_primary_that_was_outrun_leaves_the_state_that_later_epochs_begin_again_from(
    tmp_path: Path, ends: ExitStack
) -> None:
    """Its own lies in its memory: if that of both hosts were lost, nobody could begin again."""
    hosts = Hosts(tmp_path, ACTIVE_REPLICATION, ends, hf.checkpoint.interval("100us"))
    primary, _ = hosts.run("a", Role.LEAD, hosts.seat("a", Seize))
    secondary, _ = hosts.run("c", Role.SHARE, hosts.seat("c", Enlist))
    while primary.machine.launched < 1:
        primary.step()
    go_on(secondary, 1)  # in the store: nobody has said yet how checkpoints are made
    go_on(primary, 1)
    primary.committer.chores.do()
    primary.committer.upkeep.checkpoints._finish(wait=True)
    primary.committer.idle()
    assert hosts.records()[1].base is None
    go_on(secondary, 3)  # the last one in memory
    records = hosts.records()
    assert records[3].base == Base(2)
    go_on(primary, 2)
    assert hosts.records()[3].base == Base(2)
    assert hosts.records()[2].state == records[2].state
    state = DirectoryStore(tmp_path / "store" / "p" / "state")
    assert all(state.found(name) is not None for name in records[2].files())
    go_on(primary, 5)
    go_on(secondary, 5)


class StalledError(BaseException):
    """A host has come to a place, and comes no further."""


def test_what_a_secondary_is_delivering_while_a_gap_is_being_left_is_not_left_out(
    tmp_path: Path, ends: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has an epoch before it is committed: were it left out, its windows would be in the next one again."""
    table = f"sqlite:///{tmp_path}/results.db"
    hosts = Hosts(tmp_path, ACTIVE_REPLICATION, ends, hf.checkpoint.delta(), table)
    first = hosts.seat("a", Seize)
    loop, _ = hosts.run("a", Role.LEAD, first)
    go_on(loop, 1)
    while loop.machine.planned < 2:
        loop.step()
    hosts.agreement.ask({"p": [Resign(first)]})
    leading = hosts.seat("b", Seize)
    secondary, _ = hosts.run("c", Role.SHARE, hosts.seat("c", Enlist))
    go_on(secondary, 1)
    leave_gap, commit = Start._leave_gap, Committer._commit

    def stalled(self: Committer, *given: Any, **named: Any) -> bool:
        if not self.run.machine.leading:
            raise StalledError
        return commit(self, *given, **named)

    def late(self: Start, *given: Any) -> bool:
        with pytest.raises(StalledError):
            go_on(secondary, 2)
        return leave_gap(self, *given)

    monkeypatch.setattr(Committer, "_commit", stalled)
    monkeypatch.setattr(Start, "_leave_gap", late)
    primary, _ = hosts.run("b", Role.LEAD, leading)
    go_on(primary, 6)
    engine = sa.create_engine(table)
    with engine.connect() as connection:
        found = connection.execute(sa.text("SELECT k, window_start FROM counts")).all()
    engine.dispose()
    assert len(found) == len(set(found)) > 0
    assert {record.gaps for record in hosts.records().values()} == {0}
