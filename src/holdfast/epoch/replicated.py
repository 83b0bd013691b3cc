"""A run of a fragment beside another host: it stands by, follows, shares the work, or leads, as its seat says.

A secondary that processes is a recovery that does not end: it runs every epoch as it was planned and, when the primary
has committed it, goes on with what was committed. What it has run and the primary has not committed yet is what it
commits when it takes over. A takeover is nothing but a change of role: all that is in flight stays.

A run is for a rise: from standby to following, sharing and leading. When less is wanted it ends, and another begins.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from holdfast.epoch.authority import ReplicaAuthority, Role
from holdfast.epoch.digest import difference
from holdfast.epoch.driver import PipelineRun
from holdfast.epoch.flights import Flight
from holdfast.epoch.record import Base, EpochRecord, made_again, merge_commits
from holdfast.epoch.recovery import Recovery
from holdfast.epoch.report import EpochReport
from holdfast.epoch.restart import Restart
from holdfast.epoch.retention import Retention
from holdfast.epoch.standby import Standby, inbox_of
from holdfast.epoch.streams import vector_of
from holdfast.errors import EpochFailedError, LeaseLostError
from holdfast.meta import Commit
from holdfast.pstream.link import StreamSource
from holdfast.store import Private, Tier, remove_tree

__all__ = ["ReplicaRun"]

_LOOK_SECONDS = 0.01
_STANDBY_SECONDS = 0.1
_KEPT_EPOCHS = 3
_DRAIN_SECONDS = 2.0
_HERE = Private("in the memory of this host")
_IN_VAIN = Private("made by this replica for an epoch whose record names what another has made")
_INHERITED = ("base", "policy", "reason", "beside")
"""What a secondary's commit takes from the one before: checkpoints are the primary's."""


class ReplicaRun(PipelineRun):
    """`on_takeover` is told when output goes on under this primary, with the number of epochs that were replayed.
    `on_processed` is told what was run here, whoever has committed it, and `on_input` before that how many rows it took
    from outside and from p-streams; neither is told what was made again."""

    _authority: ReplicaAuthority
    _patience = _LOOK_SECONDS

    def __init__(
        self,
        *given: Any,
        on_takeover: Callable[[int], None] | None = None,
        on_processed: Callable[[EpochReport], None] | None = None,
        on_input: Callable[[int, int], None] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self._told["digest"] = True
        self._on_takeover = on_takeover or (lambda replayed: None)
        self._on_processed = on_processed or (lambda report: None)
        self._on_input = on_input or (lambda entered, streamed: None)
        self._leading = False
        self._own = Retention(self._tiers.at("volatile").alone, _KEPT_EPOCHS, _HERE)
        self._standby = Standby(self.program, self._meta, self._tiers, inbox_of(self._tiers))
        self._takes_over = False
        self.fresh = 0
        """Epochs that were committed here, without those that were made again."""
        self._owed: int | None = None
        """The last epoch that was planned before this run took over while it was processing."""

    @property
    def received(self) -> int:
        """Bytes of state and input that came while it stood by."""
        return self._standby.received

    def live(self) -> bool:
        """Until the fragment ends, or less is wanted of this replica; whether it has come to its end here."""
        self._ended = False
        self._live()
        return self._ended and not self._stop

    def _go(self) -> None:
        while self._authority.role.stands_by and not self._stop:
            self._authority.renew()
            role = self._authority.role
            done = self._standby.follow(hot=role is Role.HOT)
            self._authority.ready(role if done else None)
            self._stand(role)
        role = self._authority.role
        if self._stop or role is Role.NONE:
            self._standby.drop()
            return
        self._told["inbox"] = str(self._standby.inbox.root)
        if role is Role.LEAD:
            self._takes_over = True
            self._recover()
        else:
            self._join()
        self._began = self._clock()
        if self._process():
            self._finish()
            self._ended = True
        elif not self._leading:
            self._discard_prepared()
            remove_tree(self._tiers.volatile, _HERE)

    def _discard_prepared(self) -> None:
        """What is in flight is committed by another; of what was prepared for it here nobody knows."""
        self._authority.ready(None)
        for epoch, flight in sorted(self._flights.drain(_DRAIN_SECONDS).items()):
            assert flight.messages is not None
            mine, _ = merge_commits(self._record, flight.plan, flight.messages)
            made = mine.files() - self._begin.files() - self._record.files()
            self._tiers.at("stable").remove(made, _IN_VAIN)
            self._delivery.discard(epoch, mine)

    def _stand(self, role: Role) -> None:
        """Wait a little, but not when another role is asked for: it may be the first one."""
        until = time.monotonic() + _STANDBY_SECONDS
        while self._authority.role is role and not self._stop and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    def _process(self) -> bool:
        """Run epochs; whether the fragment has come to its end."""
        while True:
            role = self._authority.role
            if role is Role.LEAD and not self._leading:
                self._takes_over = True
                self._assume()
            elif role not in (Role.FOLLOW, Role.SHARE, Role.LEAD) or (self._stop and not self._leading):
                return False
            if self._leading and role is not Role.LEAD:
                raise LeaseLostError(
                    f"another host runs '{self.program.name}' now",
                    cure="nothing to do: this one goes on beside it",
                )
            if not self._step():
                return self._leading

    # beginning

    def _join(self) -> None:
        """Get to where the primary is."""
        self._recovery = Recovery(self._clock)
        self._recovery.enter("progress")
        restart = Restart(self.program, self._meta, self._options)
        self._bring_back(restart)
        self._set_out(restart)

    def _recover(self) -> None:
        """As the primary, from what a standby has."""
        self._leading = True
        super()._recover()

    def _bring_back(self, restart: Restart) -> None:
        restart.sound = self._standby.sound
        super()._bring_back(restart)
        if self._leading and not self._authority.precise:
            self._leave_gap(restart)

    def _leave_gap(self, restart: Restart) -> None:
        """Leave out what would have to be replayed, and what was planned: the state is as old as it is."""
        lease, last = self._authority.lease, restart.last
        if not restart.planned:
            return
        self._delivery.publication.publish_all(lease)
        record = restart.record.routed({name: bounds.to_json() for name, bounds in last.routing.items()})
        record = replace(last, state=record.state, gap=restart.began, receipts={}, digest={})
        if self._all_stable(record):
            record = replace(record, base=None)
        if restart.lost:
            self._meta.recommit(lease, restart.committed, record.to_json())
        for epoch in range(restart.committed + 1, restart.committed + restart.fresh + 1):
            plan = restart.planned[epoch]
            record = replace(record.routed(plan["routing"]), positions=plan["positions"], done=plan["done"])
            self._meta.commit(lease, epoch, record.to_json(), self._clock())
        restart.left_out(record)
        self._record = self._begin = record
        self._planned, self._lost = restart.planned, restart.lost
        self._protocol = type(self._protocol)(restart.committed, restart.committed, overlap=False)

    def _assume(self) -> None:
        """Become the primary while epochs are in flight. What the one before has committed and this one has not run is
        run first, as before; its commits are found, and taken over. Where both have put out, output has not stopped."""
        if self._authority.shared:
            self._recovered_takeover(0)
        lease = self._authority.lease
        restart = Restart(self.program, self._meta, self._options)
        while self._protocol.committed < restart.committed:
            if not self._step():
                break
        if self._protocol.committed < restart.committed:
            raise EpochFailedError(
                f"'{self.program.name}' ended before it was where the primary had been",
                cure="nothing is lost: the next start goes on from the last commit",
            )
        self._leading = True
        self._owed = restart.committed + restart.fresh
        self._keep_house(restart, self._record, lease)
        self._put_out()

    def _put_out(self) -> None:
        """Output goes on when what was planned before is committed."""
        if self._owed is not None and self._protocol.committed >= self._owed:
            self._owed = None
            self._recovered_takeover(0)

    def _recovered(self) -> None:
        replayed = (self._replaying or 0) - self._recovered_from
        super()._recovered()
        self._told.pop("inbox", None)
        if self._leading:
            self._recovered_takeover(replayed)
        self._standby.inbox.forget()

    def _recovered_takeover(self, replayed: int) -> None:
        if self._takes_over:
            self._takes_over = False
            self._on_takeover(replayed)

    # epochs

    def _reported(self, epoch: int, record: EpochRecord, facts: Mapping[str, Any], flight: Flight) -> EpochReport:
        self.fresh += 1
        report = super()._reported(epoch, record, facts, flight)
        self._on_processed(report)
        return report

    def _plan(self, epoch: int) -> None:
        if self._leading and not self._authority.shared:
            super()._plan(epoch)
            return
        found = self._meta.look_up(self.program.name, epoch)
        if found is not None:
            if isinstance(found, Commit):
                self._lost[epoch] = EpochRecord.from_json(found.record)
            self._planned_as(epoch, found.plan)
        elif self._leading or self._authority.role is Role.SHARE:
            with self._unless_fenced():
                super()._plan(epoch)
        elif self._meta.last_epoch(self.program.name) >= epoch:
            raise self._left_behind(epoch)
        else:
            self._up_to_date()
            time.sleep(_LOOK_SECONDS)

    def _up_to_date(self) -> None:
        """Nothing is committed that this one has not run."""
        if not self._leading:
            self._authority.ready(self._authority.role)

    def _left_behind(self, epoch: int) -> EpochFailedError:
        return EpochFailedError(
            f"this replica of '{self.program.name}' is too far behind: epoch {epoch} is not kept any more",
            cure="nothing to do: it begins again from the last checkpoint",
            epoch=epoch,
        )

    def _launch(self, epoch: int) -> None:
        if epoch not in self._lost:
            slices = self._planned[epoch]["slices"]
            rows = {True: 0, False: 0}
            for node in self.program.sources:
                taken = sum(piece["rows"] for task in slices.get(node.name, ()) for piece in task)
                rows[isinstance(node.source, StreamSource)] += taken
            self._on_input(rows[False], rows[True])
        super()._launch(epoch)

    def _tier(self) -> Tier:
        if self._leading:
            return super()._tier()
        stable = self._authority.role is Role.SHARE and self._record.policy in (None, "delta")
        return "stable" if stable else "volatile"

    def _commit(self, epoch: int) -> None:
        if self._leading:
            super()._commit(epoch)
            self._put_out()
            return
        found = self._meta.look_up(self.program.name, epoch)
        if isinstance(found, Commit):
            self._adopt(epoch, EpochRecord.from_json(found.record))
        elif found is None:
            raise self._left_behind(epoch)
        elif self._authority.role is Role.SHARE:
            self._share(epoch)
        else:
            self._up_to_date()
            time.sleep(_LOOK_SECONDS)

    def _adopt(self, epoch: int, winner: EpochRecord) -> None:
        """The other one has committed the epoch that was run here, too."""
        flight = self._flights.land(epoch)
        assert flight.messages is not None
        mine, facts = merge_commits(self._record, flight.plan, flight.messages)
        behind = self._lost.pop(epoch, None) is not None  # it was committed before it was begun here
        self._go_on_with(epoch, self._reconciled(epoch, winner, mine, silent=behind), behind=behind)
        if self._authority.shared:
            self._delivery.publication.publish()
        self._pacer.measured(facts["read"], flight.busy(self._protocol.overlap))
        if not behind:
            self._on_processed(super()._reported(epoch, mine, facts, flight))

    def _share(self, epoch: int) -> None:
        """Commit as the secondary, unless the primary is first. What lies in memory here is no base for anybody."""
        flight = self._flights.peek(epoch)
        assert flight.messages is not None
        self._check_written(epoch, flight.messages)
        record, facts = merge_commits(self._record, flight.plan, flight.messages)
        stable = self._all_stable(record)
        if self._record.policy in (None, "delta") and not stable:
            time.sleep(_LOOK_SECONDS)
            return
        vector = vector_of(self.program, record.positions)
        delivered = self._delivery.before_commit(epoch, flight.messages, vector)
        durable = None if stable else self._record.positions
        if self._record.base is not None:
            durable = self._positions_at(self._record.base.epoch)
        also = self._streams.writes(self._record, record, flight.messages, epoch, facts["read"], durable)
        also = self._delivery.publication.writes(epoch, record.receipts, also)
        with self._unless_fenced():
            lease, now = self._authority.lease, self._clock()
            inherit = partial(_inherited, stable=stable)
            if self._meta.commit(lease, epoch, record.to_json(), now, also=also, inherit=inherit):
                self._flights.land(epoch)
                found = self._meta.look_up(self.program.name, epoch)
                assert isinstance(found, Commit)
                self._delivery.publication.publish()
                self._delivery.after_commit(epoch, delivered)
                self._go_on_with(epoch, replace(EpochRecord.from_json(found.record), state=record.state))
                self._on_epoch(self._reported(epoch, record, facts, flight))

    def _positions_at(self, epoch: int) -> Any:
        """Where the sources stood after an epoch: what is behind may have to be replayed."""
        if epoch == 0:
            return {node.name: dict(node.source.start()) for node in self.program.sources}  # type: ignore[union-attr]
        found = self._meta.look_up(self.program.name, epoch)
        if not isinstance(found, Commit):
            raise self._left_behind(epoch)
        return found.record["positions"]

    @contextlib.contextmanager
    def _unless_fenced(self) -> Iterator[None]:
        """The right to commit may go while it is used: what is left of the seat is seen in the next step."""
        try:
            yield
        except LeaseLostError:
            if self._leading:
                raise
            self._authority.renew()

    def _outrun(self, epoch: int, record: EpochRecord) -> EpochRecord:
        """The secondary was first. Checkpoints are the primary's: the winner's record gets its base."""
        found = self._meta.look_up(self.program.name, epoch)
        if not isinstance(found, Commit):
            raise self._left_behind(epoch)
        winner = EpochRecord.from_json(found.record)
        kept = self._reconciled(epoch, winner, record)
        if winner.base != record.base and not self._is_stable(winner):
            self._meta.recommit(self._authority.lease, epoch, replace(winner, base=record.base).to_json())
        self._delivery.publication.publish()
        return replace(kept, base=record.base, policy=record.policy, reason=record.reason)

    def _reconciled(self, epoch: int, winner: EpochRecord, mine: EpochRecord, *, silent: bool = False) -> EpochRecord:
        """What to go on with, where `winner` was committed and `mine` was made here; what of that is in vain goes. An
        epoch that was left out has no output to compare with, and its state is not what is made by running it."""
        left_out = winner.gap is not None
        what = None if silent or left_out else difference(winner.digest, mine.digest)
        if what is not None:
            self._authority.differs(epoch, what)
        if self._is_stable(winner):
            kept = winner
        elif what is None and not left_out:
            kept = made_again(winner, mine, epoch, self.program.name)
        else:
            raise EpochFailedError(
                f"this replica of '{self.program.name}' cannot go on: {what or 'the epoch was left out'}",
                cure="it begins again from the last checkpoint",
                epoch=epoch,
            )
        if kept is winner:
            # Merges that only this one began from are named by nobody now.
            merged = self._begin.files() - self._record.files()
            made = (mine.files() - self._begin.files() | merged) - winner.files()
            self._tiers.at("stable").remove(made, _IN_VAIN)
        if not silent and mine.receipts != winner.receipts:
            self._delivery.discard(epoch, mine)
        return kept

    def _is_stable(self, record: EpochRecord) -> bool:
        """Whether others find the state of a record."""
        if record.base is None and record.policy in (None, "delta"):
            return True
        return self._all_stable(record)

    def _all_stable(self, record: EpochRecord) -> bool:
        return all(self._tiers.stable_only.path(name).exists() for name in record.files())

    def _go_on_with(self, epoch: int, record: EpochRecord, *, behind: bool = False) -> None:
        self._record = record
        if behind:
            self._authority.ready(None)
        else:
            self._up_to_date()
        self._own.add(epoch, record.files())
        self._committed(epoch)
        self._work.forget(epoch)
        if epoch == self._replaying:
            self._recovered()

    def _committed(self, epoch: int) -> None:
        if self._leading or self._authority.role is Role.SHARE:
            super()._committed(epoch)
            return
        self._begin = self._record
        self._landed(epoch)

    def _nothing_to_read(self, upstream_ended: bool) -> None:
        if self._leading:
            super()._nothing_to_read(upstream_ended)
        else:  # when it is the end, the primary says so
            self._up_to_date()
            self._rest()

    def _rest(self) -> None:
        if self._leading:
            super()._rest()
        elif self._protocol.launched == self._protocol.committed:
            time.sleep(_LOOK_SECONDS)
        else:
            self._wait()

    def _check_sinks(self) -> None:
        """When it leads: until then another host writes, and commits while this one would look."""

    def publish_due(self) -> None:
        if self._leading:
            super().publish_due()

    def _publish_all(self) -> None:
        if self._leading:
            super()._publish_all()

    def should_stop(self) -> bool:
        return self._leading and super().should_stop()


def _inherited(epoch: int, before: Mapping[str, Any], *, stable: bool) -> dict[str, Any]:
    """What a secondary's commit takes from the one before. What lies in its memory is made again from there."""
    taken = {name: before[name] for name in _INHERITED}
    if taken["base"] is None and not stable:
        taken["base"] = asdict(Base(epoch))
    return taken
