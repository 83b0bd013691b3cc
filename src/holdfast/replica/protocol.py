"""A host that runs a replica of one fragment: events in, actions out, no clock and no I/O.

It is told by levels, not by edges: after every event it looks at what it has, at what the last view of the ledger says
it should have, and asks for what is missing and not under way. A lost answer, a late one and a transaction that was
done though nobody heard of it all come to the same: the next view tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.replica.ledger import View
from holdfast.replica.messages import (
    Acked,
    Action,
    Answered,
    Begins,
    Event,
    Exit,
    Fetch,
    Fetched,
    LoadProgram,
    Local,
    OpenSession,
    ProgramLoaded,
    Ran,
    Rows,
    Run,
    Save,
    Saved,
    SessionOpened,
    Subscribe,
    Tick,
    Unsubscribe,
    Write,
    Written,
)
from holdfast.replica.publishing import Publishing
from holdfast.replica.queues import Inbox, Vector
from holdfast.replica.schemes import Equipment
from holdfast.replica.seating import StopReplica

__all__ = ["Replica"]


@dataclass(slots=True)
class Replica(Publishing):
    """One process of a host."""

    def on(self, event: Event, now: float) -> list[Action]:
        """What to do after an event. `now` is the host's own clock; only differences of it are looked at."""
        self._out = []
        if isinstance(event, Answered):
            self._on_answer(event, now)
        elif isinstance(event, Tick):
            self._on_tick()
        elif isinstance(event, Rows):
            if self.inbox is not None and self.inbox.accept(event.upstream, event.first, event.end):
                self._news = True
        elif isinstance(event, Ran):
            self._on_ran(event.state)
        elif isinstance(event, Written):
            self._on_written(event)
        elif isinstance(event, Saved):
            self._busy.discard(Save)
            if event.done and self._token == event.token:
                self._saved = event.state
            self._blocked = self._blocked or not event.done
        elif isinstance(event, Acked):
            self.acked = max(self.acked, event.epoch)
        elif isinstance(event, Fetched):
            self._on_fetched(event.state)
        elif isinstance(event, Begins):
            if self.inbox is None and Subscribe in self._busy:
                self.inbox = Inbox.at(event.vector)
                self._busy.discard(Subscribe)
        elif isinstance(event, SessionOpened):
            self.session = True
        elif isinstance(event, ProgramLoaded):
            self.program = True
            self._busy.discard(LoadProgram)
        else:
            self._do(OpenSession())
            self._beat()
        self._advance()
        return self._out

    # events

    def _on_answer(self, event: Answered, now: float) -> None:
        self._asked.pop(type(event.request), None)
        if event.answer is None:
            return
        view = event.answer.view
        if self.view is not None and view.serial <= self.view.serial:
            return
        self.view = view
        self._sit(view)
        self.keeper.look(view, now)
        self._seek(view)

    def _on_tick(self) -> None:
        self._beat()
        self._blocked = False
        self._ticks += 1
        if self._ticks % 2 == 0:
            self._sent.clear()  # what is not acknowledged by now is sent again
        if self.view is not None:
            self._forget(self.view)
        if self.inbox is not None:
            # Nothing came: what was sent may have been lost, or the upstream does not know of us.
            if self.inbox.gap or not self._news:
                self._do(Subscribe(tuple(self.inbox.seen)))
            self.inbox.gap = self._news = False
        elif Subscribe in self._busy:
            self._do(Subscribe(None))

    def _forget(self, view: View) -> None:
        """What is committed is not written again, and what is before both checkpoints is not gone back to."""
        self._written = {each for each in self._written if each > view.committed}
        self._snapshots = {epoch: each for epoch, each in self._snapshots.items() if epoch >= view.previous}

    def _on_ran(self, made: Local) -> None:
        self._busy.discard(Run)
        before = self.state
        if before is None or (before.lineage, before.epoch + 1) != (made.lineage, made.epoch):
            return
        self.state = made
        self.outputs[made.epoch] = made.value
        self._snapshots[made.epoch] = made

    def _on_written(self, event: Written) -> None:
        self._busy.discard(Write)
        if event.token != self._token:
            return
        if event.done:
            self._failures = 0
            self._written.add(event.epoch)
        else:
            self._failures += 1
            self._blocked = True

    def _on_fetched(self, state: Local | None) -> None:
        self._busy.discard(Fetch)
        view, mine = self.view, self.state
        if state is None or view is None or state.lineage != view.lineage or not self._wanted(view).state:
            return
        if mine is None or mine.lineage != state.lineage or mine.epoch < state.epoch:
            self._go_on_from(state)
            if self.inbox is not None:
                self.inbox.prune(state.ends)

    # what is to be done

    def _advance(self) -> None:
        view = self.view
        if view is None or not self.session:
            return
        if view.stopped and any((self.host, self.incarnation) == each[:2] for each in view.stopped):
            self._do(Exit(f"its output of epoch {self.diverged} differs from what was committed"))
            return
        want = self._wanted(view)
        if self.state is not None and self.state.lineage < view.lineage and self._skipping is None:
            self.state = None
            self.outputs.clear()
        self._equip(view, want)
        if self._gap_due and self.is_primary:
            self._leave_gap(view)
        self._compare(view)
        if want.processes and not self._gap_due:
            self._process(view)
        if want.publishes and self.diverged is None:
            if not self._gap_due:
                self._plan(view)
                self._commit(view)
            self._publish(view)
        if self.is_primary and not self._gap_due:
            self._keep(view)

    def _equip(self, view: View, want: Equipment) -> None:
        if want.program and not self.program and LoadProgram not in self._busy:
            self._begin(LoadProgram())
        if not want.program:
            self.program = False
        if not want.state:
            self.state = None
            self.outputs.clear()
            self._snapshots.clear()
        elif self.program and Fetch not in self._busy and self._needs_state(view, want):
            if view.checkpoint == 0:
                self._go_on_from(Local(view.lineage, 0, 0, (0,) * self.upstreams))
            else:
                self._begin(Fetch(view.checkpoint, view.checkpoint_token))
        if not want.input:
            if self.inbox is not None:
                self._do(Unsubscribe())
            self.inbox = None
            self._busy.discard(Subscribe)
        elif self.state is not None and not self._gap_due and Subscribe not in self._busy:
            ends = self.state.ends
            if self.inbox is None or any(a < b for a, b in zip(self.inbox.seen, ends, strict=True)):
                self._receive_from(ends)

    def _needs_state(self, view: View, want: Equipment) -> bool:
        state = self.state
        if state is None or state.lineage != view.lineage:
            return True
        if state.epoch >= view.checkpoint:
            return False
        return not want.processes or self._gap_due or state.epoch < view.previous

    def _receive_from(self, vector: Vector) -> None:
        self.inbox = Inbox.at(vector)
        self._news = True
        self._do(Subscribe(vector))

    def _process(self, view: View) -> None:
        """Run the next planned epoch: for the first time, or again to get the state back."""
        state, inbox = self.state, self.inbox
        if Run in self._busy or state is None or inbox is None or state.lineage != view.lineage:
            return
        epoch = state.epoch + 1
        slices = view.plans.get(epoch)
        if slices is None or self.diverged is not None:
            return
        if inbox.covers(slices):
            inbox.prune(tuple(first for first, _ in slices))
            if epoch <= view.committed:
                self._replayed.add(epoch)
            self._begin(Run(epoch, slices, inbox.take(slices), state))
        elif any(first < end and first < have for (first, end), have in zip(slices, inbox.first, strict=True)):
            self._receive_from(tuple(first for first, _ in slices))

    def _compare(self, view: View) -> None:
        """What was run here must be what was committed. If not, it is the secondary that is stopped; a primary whose
        secondary was first gets its state back from the checkpoint, and what it then replays is taken as it is. So does
        a secondary that gets the first seat before it could be stopped."""
        if self.diverged is not None and self.is_primary:
            self.diverged = self.state = None
            self.outputs.clear()
            self._snapshots.clear()
            return
        for epoch in [each for each in self.outputs if each <= view.committed]:
            mine = self.outputs.pop(epoch)
            record = view.records.get(epoch)
            again = epoch in self._replayed
            self._replayed.discard(epoch)
            if record is None or record.skipped or record.value == mine:
                continue
            if not self.is_primary:
                self.diverged = epoch
            elif not again:
                if view.secondary is not None and view.secondary.token == record.token:
                    self._ask(StopReplica(self._required(), view.secondary, epoch))
                self.state = None
                self.outputs.clear()
                return
        if self.diverged is not None and self.seat is not None and not self.is_primary:
            self._ask(StopReplica(self.seat.token, self.seat, self.diverged))
