"""Machines that are broken on purpose, one check left out of each: what the simulation must find."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.replica.ledger import CommitEpoch, Ledger, PlanEpoch, Record, View
from holdfast.replica.messages import Answered, Event, Local, Publish, Release, Saved
from holdfast.replica.protocol import Replica
from holdfast.replica.queues import Inbox, Receiver
from holdfast.replica.seating import Beat, Seat, Seize
from holdfast.replica.simulation import Parts


class CommitsWithAnyToken(Ledger):
    def may_commit(self, token: int) -> bool:
        return True


class SecondaryMayAlwaysCommit(Ledger):
    """Whatever the scheme is."""

    def may_commit(self, token: int) -> bool:
        return any(seat is not None and seat.token == token for seat in (self.primary, self.secondary))


class CommitsTwice(Ledger):
    def _commit(self, request: CommitEpoch) -> bool:
        if not self.may_commit(request.token) or request.epoch not in self.plans:
            return False
        self.committed = max(self.committed, request.epoch)
        self.records[request.epoch] = Record(request.value, request.token)
        return True


class LastPlanWins(Ledger):
    def _plan(self, request: PlanEpoch) -> bool:
        if request.epoch == self.planned and self.planned > self.committed and self.may_commit(request.token):
            self.plans[self.planned] = request.slices
            self.planned_ends = tuple(end for _, end in request.slices)
            return True
        return Ledger._plan(self, request)


class KeepsTheToken(Ledger):
    """A new primary gets the token of the one before."""

    def _seize(self, request: Seize) -> bool:
        before = self.primary
        done = Ledger._seize(self, request)
        if done and before is not None and self.primary is not None:
            self.primary = Seat(self.primary.host, self.primary.incarnation, before.token)
        return done


class TrimsByCheckpointOnly(Ledger):
    """Forgets records that the reader does not have."""

    def _trim(self) -> None:
        for kept in (self.plans, self.records):
            for epoch in [each for each in kept if each <= self.checkpoint]:
                del kept[epoch]


class LateBeatsCount(Ledger):
    """A late beat of a process that was replaced counts as one of the new process."""

    def _beat(self, beat: Beat) -> bool:
        self.members.pop(beat.host, None)
        return Ledger._beat(self, beat)

    def _is_current(self, host: str, incarnation: int) -> bool:
        return True


@dataclass(slots=True)
class PublishesTooEarly(Replica):
    """Sends what it has run and written, committed or not."""

    def _publish(self, view: View) -> None:
        Replica._publish(self, view)
        for epoch in sorted(self._written):
            if epoch > view.committed and epoch not in self._sent:
                self._sent.add(epoch)
                self._do(Publish(epoch, self._required(), skipped=False))


@dataclass(slots=True)
class ReleasesTooEarly(Replica):
    """When the checkpoint is written, not when the ledger has it."""

    def on(self, event: Event, now: float):  # type: ignore[no-untyped-def]
        out = Replica.on(self, event, now)
        if isinstance(event, Saved) and event.done:
            out.append(Release(event.state.ends))
        return out


@dataclass(slots=True)
class ReleasesForTheNewest(Replica):
    """As if nobody could be one checkpoint behind: safe, but a secondary that is slow never gets ready."""

    def _sweep(self, view: View) -> None:
        Replica._sweep(self, replace(view, previous=view.committed))


@dataclass(slots=True)
class SweepsWhatItDoesNotKnow(Replica):
    """Takes every token but its own for dead."""

    def _sweep(self, view: View) -> None:
        Replica._sweep(self, replace(view, primary=self.seat, secondary=None))


@dataclass(slots=True)
class DoesNotReplay(Replica):
    """Takes a checkpoint for the state of the last committed epoch."""

    def _on_fetched(self, state: Local | None) -> None:
        view = self.view
        if self.is_primary and state is not None and view is not None:
            ends = {epoch: tuple(end for _, end in plan) for epoch, plan in view.plans.items()}
            state = replace(state, epoch=view.committed, ends=ends.get(view.committed, state.ends))
        Replica._on_fetched(self, state)


@dataclass(slots=True)
class ComparesNothing(Replica):
    def _compare(self, view: View) -> None:
        for epoch in [each for each in self.outputs if each <= view.committed]:
            del self.outputs[epoch]


@dataclass(slots=True)
class ForgetsTheLineage(Replica):
    """After a gap recovery of another host it goes on with its own state."""

    def _on_answer(self, event: Answered, now: float) -> None:
        Replica._on_answer(self, event, now)
        if self.view is not None and self.state is not None:
            self.state = replace(self.state, lineage=self.view.lineage)


@dataclass(slots=True)
class NeverSendsAgain(Replica):
    def _on_tick(self) -> None:
        sent = set(self._sent)
        Replica._on_tick(self)
        self._sent = sent


@dataclass(slots=True)
class KeepsQueueWithDuplicates(Inbox):
    def accept(self, upstream: int, first: int, end: int) -> bool:
        if first > self.seen[upstream]:
            self.gap = True
            return False
        self.pieces[upstream].append((first, end))
        self.seen[upstream] = max(end, self.seen[upstream])
        return True


@dataclass(slots=True)
class KeepsQueueWithGaps(Inbox):
    def accept(self, upstream: int, first: int, end: int) -> bool:
        if end <= self.seen[upstream]:
            return False
        self.pieces[upstream].append((max(first, self.seen[upstream]), end))
        self.seen[upstream] = end
        return True


class TakesEverything(Receiver):
    """No duplicate is filtered."""

    def take(self, epoch: int, value: int | None) -> list[tuple[int, int | None]]:
        self.seen = max(self.seen, epoch)
        return [(epoch, value)]


def _with_queue(kind: type[Inbox]) -> type[Replica]:
    @dataclass(slots=True)
    class WithQueue(Replica):
        def _advance(self) -> None:
            Replica._advance(self)
            if self.inbox is not None and not isinstance(self.inbox, kind):
                own = self.inbox
                self.inbox = kind(own.first, own.seen, own.pieces, own.gap)

    return WithQueue


BROKEN: dict[str, Parts] = {
    "commits with any token": Parts(ledger=CommitsWithAnyToken),
    "a secondary may commit with any scheme": Parts(ledger=SecondaryMayAlwaysCommit),
    "an epoch is committed twice": Parts(ledger=CommitsTwice),
    "the last plan wins": Parts(ledger=LastPlanWins),
    "a new primary has the old token": Parts(ledger=KeepsTheToken),
    "records are forgotten before they are delivered": Parts(ledger=TrimsByCheckpointOnly),
    "late beats count": Parts(ledger=LateBeatsCount),
    "a replica publishes too early": Parts(replica=PublishesTooEarly),
    "inputs are released too early": Parts(replica=ReleasesTooEarly),
    "checkpoints are removed too early": Parts(replica=ReleasesForTheNewest),
    "files of unknown tokens are swept": Parts(replica=SweepsWhatItDoesNotKnow),
    "no replay after a takeover": Parts(replica=DoesNotReplay),
    "outputs are not compared": Parts(replica=ComparesNothing),
    "the state of another lineage is used": Parts(replica=ForgetsTheLineage),
    "lost output is never sent again": Parts(replica=NeverSendsAgain),
    "the queue keeps duplicates": Parts(replica=_with_queue(KeepsQueueWithDuplicates)),
    "the queue has gaps": Parts(replica=_with_queue(KeepsQueueWithGaps)),
    "the reader takes duplicates": Parts(receiver=TakesEverything),
}
