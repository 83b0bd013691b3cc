"""A host that runs a replica of one fragment: events in, actions out, no clock and no I/O.

It is told by levels, not by edges: after every event it looks at what it has, at what the last view of the ledger says
it should have, and asks for what is missing and not under way. A lost answer, a late one and a transaction that was
done though nobody heard of it all come to the same: the next view tells.

Output is sent only when the ledger has the epoch as committed. So what a reader has is never taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.replica.ledger import (
    Beat,
    CommitEpoch,
    Enlist,
    MarkCheckpoint,
    PlanEpoch,
    Request,
    Resign,
    Seat,
    Seize,
    Skip,
    StopReplica,
    View,
)
from holdfast.replica.messages import (
    Acked,
    Action,
    Answered,
    Ask,
    Begins,
    Event,
    Exit,
    Fetch,
    Fetched,
    LoadProgram,
    Local,
    OpenSession,
    ProgramLoaded,
    Publish,
    Ran,
    Release,
    Rows,
    Run,
    Save,
    Saved,
    SessionOpened,
    Subscribe,
    Sweep,
    Tick,
    Unsubscribe,
    Write,
    Written,
)
from holdfast.replica.queues import Inbox, Slices, Vector
from holdfast.replica.schemes import Equipment, Scheme
from holdfast.replica.watch import Watch

__all__ = ["Replica", "Timing"]

_PRIMARY = Scheme.ACTIVE_REPLICATION.equipment
_SPARE = Scheme.DEPLOYED.equipment
_PATIENCE_WRITES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A host that has not beaten for `detection` seconds is taken for dead. Two epochs may be planned and not yet
    committed; a checkpoint is made after every `checkpoint_epochs`; an epoch takes at most `most_rows` per input."""

    beat: float = 0.25
    detection: float = 1.0
    flight: int = 2
    checkpoint_epochs: int = 4
    most_rows: int = 50


@dataclass(slots=True)
class Replica:
    """`incarnation` grows with every process that is started for the host."""

    host: str
    incarnation: int
    upstreams: int
    timing: Timing = field(default_factory=Timing)
    precise: bool = True
    view: View | None = None
    seat: Seat | None = None
    session: bool = False
    program: bool = False
    state: Local | None = None
    inbox: Inbox | None = None
    outputs: dict[int, int] = field(default_factory=dict)
    """Checksums of epochs that were run here and not yet compared with what was committed."""
    diverged: int | None = None
    acked: int = 0
    _primary: Watch = field(default_factory=Watch)
    _secondary: Watch = field(default_factory=Watch)
    _snapshots: dict[int, Local] = field(default_factory=dict)
    _asked: dict[type, Request] = field(default_factory=dict)
    _busy: set[type] = field(default_factory=set)
    _replayed: set[int] = field(default_factory=set)
    _written: set[int] = field(default_factory=set)
    _sent: set[int] = field(default_factory=set)
    _saved: Local | None = None
    _released: int = 0
    _gap_due: bool = False
    _skipping: Local | None = None
    _failures: int = 0
    _blocked: bool = False
    _news: bool = False
    _ticks: int = 0
    _out: list[Action] = field(default_factory=list)

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
        most = 2 * self.timing.beat
        self._primary.look(view.primary, view, now, most)
        self._secondary.look(view.secondary, view, now, most)
        self._seek(view)

    def _on_tick(self) -> None:
        self._beat()
        self._blocked = False
        self._ticks += 1
        if self._ticks % 2 == 0:
            self._sent = {each for each in self._sent if each <= self.acked}
        if self.inbox is not None:
            # Nothing came: what was sent may have been lost, or the upstream does not know of us.
            if self.inbox.gap or not self._news:
                self._do(Subscribe(tuple(self.inbox.seen)))
            self.inbox.gap = self._news = False
        elif Subscribe in self._busy:
            self._do(Subscribe(None))

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

    # seats

    @property
    def _token(self) -> int | None:
        return None if self.seat is None else self.seat.token

    @property
    def is_primary(self) -> bool:
        return self.view is not None and self.seat is not None and self.seat == self.view.primary

    def _sit(self, view: View) -> None:
        """Find my seat in the view. With a new token all that was written under the old one is void."""
        mine = next(
            (
                each
                for each in (view.primary, view.secondary)
                if each is not None and each.host == self.host and each.incarnation == self.incarnation
            ),
            None,
        )
        if mine == self.seat:
            return
        self.seat = mine
        self._written.clear()
        self._sent.clear()
        self._saved = self._skipping = None
        self._failures = 0
        self._gap_due = self.is_primary and not self.precise and view.planned > 0

    def _seek(self, view: View) -> None:
        """Take a seat that nobody has, or whose holder is silent. A spare host waits longer: the secondary is ahead."""
        if self.is_primary or not self.session:
            return
        first = view.secondary is None or self.seat is not None
        patience = self.timing.detection + (0 if first else 4 * self.timing.beat)
        if self._primary.is_gone(patience):
            seen = None if view.primary is None else view.members.get(view.primary.host)
            self._ask(Seize(self.host, self.incarnation, view.primary, seen))
        elif view.scheme is Scheme.PASSIVE_REPLICATION:
            if self._primary.moved:
                self._do(Exit("the primary runs, and passive replication needs nobody else"))
        elif self.seat is None and self._secondary.is_gone(self.timing.detection):
            seen = None if view.secondary is None else view.members.get(view.secondary.host)
            self._ask(Enlist(self.host, self.incarnation, view.secondary, seen))

    def _wanted(self, view: View) -> Equipment:
        if self.seat is None:
            return _SPARE
        return _PRIMARY if self.is_primary else view.scheme.equipment

    def ready(self) -> Scheme | None:
        """The scheme that this secondary has reached: what it is asked for, if it has all of it."""
        view, state = self.view, self.state
        if view is None or self.seat is None or self.is_primary or not self.session:
            return None
        want = view.scheme.equipment
        if want.state and (state is None or state.lineage != view.lineage or state.epoch < view.previous):
            return None
        if want.input and self.inbox is None:
            return None
        if want.processes and (state is None or state.epoch < view.committed - 1):
            return None
        return view.scheme

    # what is to be done

    def _advance(self) -> None:
        view = self.view
        if view is None or not self.session:
            return
        if any((self.host, self.incarnation) == each[:2] for each in view.stopped):
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

    def _go_on_from(self, state: Local) -> None:
        self.state = state
        self.outputs.clear()
        self._snapshots = {state.epoch: state}

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
        """What was run here must be what was committed. If not, it is the secondary that is stopped; a primary that
        finds itself alone with its result gets the state back that was committed."""
        for epoch in [each for each in self.outputs if each <= view.committed]:
            mine = self.outputs.pop(epoch)
            record = view.records.get(epoch)
            if record is None or record.skipped or record.value == mine or epoch in self._replayed:
                continue
            if not self.is_primary:
                self.diverged = epoch
            else:
                if view.secondary is not None and view.secondary.token == record.token:
                    self._ask(StopReplica(self._required(), view.secondary, epoch))
                self.state = None
                self.outputs.clear()
                return
        if self.diverged is not None and self.seat is not None and not self.is_primary:
            self._ask(StopReplica(self.seat.token, self.seat, self.diverged))

    # the one who publishes

    def _plan(self, view: View) -> None:
        state, inbox = self.state, self.inbox
        if inbox is None or state is None or state.epoch < view.committed or PlanEpoch in self._asked:
            return
        if view.planned >= view.committed + self.timing.flight:
            return
        slices = self._slices(view.planned_ends, inbox)
        if any(first < end for first, end in slices):
            self._ask(PlanEpoch(self._required(), view.planned + 1, slices))

    def _slices(self, begins: Vector, inbox: Inbox) -> Slices:
        made = []
        for begin, first, seen in zip(begins, inbox.first, inbox.seen, strict=True):
            start = begin if self.precise else max(begin, first)
            made.append((start, min(max(start, seen), start + self.timing.most_rows)))
        return tuple(made)

    def _commit(self, view: View) -> None:
        epoch = view.committed + 1
        value = self.outputs.get(epoch)
        if value is None:
            return
        if epoch in self._written:
            self._ask(CommitEpoch(self._required(), epoch, value))
        elif self._failures >= _PATIENCE_WRITES and self.is_primary and view.secondary is not None:
            self._ask(Resign(self._required()))
        elif Write not in self._busy and not self._blocked:
            self._begin(Write(epoch, self._required(), value))

    def _publish(self, view: View) -> None:
        for epoch in range(max(view.delivered, self.acked) + 1, view.committed + 1):
            record = view.records.get(epoch)
            if epoch not in self._sent and record is not None:
                self._sent.add(epoch)
                self._do(Publish(epoch, record.token, record.skipped))

    def _keep(self, view: View) -> None:
        """Make checkpoints, and release what only an older one needed: when the ledger has the new one, not before."""
        token = self._required()
        marked = self._snapshots.get(view.checkpoint)
        if view.checkpoint > self._released and view.checkpoint_token == token and marked is not None:
            self._released = view.checkpoint
            older = self._snapshots.get(view.previous)
            if older is not None:
                self._do(Release(older.ends))
            self._sweep(view)
            self._snapshots = {epoch: each for epoch, each in self._snapshots.items() if epoch >= view.checkpoint}
        saved = self._saved
        if saved is not None and (saved.lineage != view.lineage or saved.epoch <= view.checkpoint):
            saved = self._saved = None
        if saved is not None:
            self._ask(MarkCheckpoint(token, saved.epoch))
        elif view.committed - view.checkpoint >= self.timing.checkpoint_epochs and not self._blocked:
            state = self._snapshots.get(view.committed)
            if state is not None and Save not in self._busy:
                self._begin(Save(state, token))

    def _sweep(self, view: View) -> None:
        """A token below all that are valid now will never commit; one that is not known here may be newer."""
        live = [each.token for each in (view.primary, view.secondary) if each is not None]
        named = {(epoch, record.token) for epoch, record in view.records.items()}
        named.add((view.checkpoint, view.checkpoint_token))
        self._do(Sweep(view.delivered, view.previous, min(live), frozenset(named)))

    def _leave_gap(self, view: View) -> None:
        """Gap recovery: what is planned and what the state has not seen is left out, and said to be. The state is made
        the checkpoint first, so that whoever comes next goes on from the same."""
        state = self.state
        if state is None or Run in self._busy:
            return
        skipping = self._skipping
        if skipping is not None and skipping.lineage == view.lineage and view.checkpoint_token == self._token:
            self._go_on_from(skipping)
            self._gap_due, self._skipping, self._saved = False, None, None
            self.inbox = None
            self._begin(Subscribe(None))
            return
        if state.lineage != view.lineage or state.epoch < view.checkpoint:
            return
        if state.epoch >= view.committed and skipping is None:
            self._gap_due = False
            return
        if skipping is None or skipping.epoch != view.planned:
            self._skipping = Local(view.lineage + 1, view.planned, state.value, view.planned_ends)
            self._saved = None
        elif self._saved == skipping:
            self._ask(Skip(self._required(), skipping.epoch, state.epoch, state.value))
        elif Save not in self._busy and not self._blocked:
            self._begin(Save(skipping, self._required()))

    # asking

    def _required(self) -> int:
        assert self.seat is not None
        return self.seat.token

    def _do(self, action: Action) -> None:
        self._out.append(action)

    def _begin(self, action: Action) -> None:
        """Do it, and remember that it is under way."""
        self._busy.add(type(action))
        self._out.append(action)

    def _ask(self, request: Request) -> None:
        """One transaction of a kind at a time."""
        if type(request) not in self._asked:
            self._asked[type(request)] = request
            self._out.append(Ask(request))

    def _beat(self) -> None:
        self._ask(Beat(self.host, self.incarnation, self.acked, self.ready()))
