"""What a host knows of itself, and the seats it takes: of the primary, of the secondary, or none.

A seat is taken when nobody has it or when who has it was silent for long enough. Only the ledger decides who gets it;
from then on the token is what counts, and a host that has lost its seat finds that nothing it asks for is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.replica.keeper import Keeper, Timing
from holdfast.replica.ledger import Request, View
from holdfast.replica.messages import Action, Ask, Exit, Local
from holdfast.replica.queues import Inbox
from holdfast.replica.schemes import Equipment, Scheme
from holdfast.replica.seating import Beat, Seat

__all__ = ["Seated"]


@dataclass(slots=True)
class Seated:
    """`incarnation` grows with every process that is started for the host."""

    host: str
    incarnation: int
    upstreams: int
    timing: Timing = field(default_factory=Timing)
    precise: bool = True
    view: View | None = None
    session: bool = False
    program: bool = False
    state: Local | None = None
    inbox: Inbox | None = None
    outputs: dict[int, int] = field(default_factory=dict)
    """Checksums of epochs that were run here and not yet compared with what was committed."""
    diverged: int | None = None
    acked: int = 0
    keeper: Keeper = field(init=False)
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

    def __post_init__(self) -> None:
        self.keeper = Keeper(self.host, self.incarnation, self.timing)

    @property
    def _token(self) -> int | None:
        return None if self.seat is None else self.seat.token

    @property
    def seat(self) -> Seat | None:
        return self.keeper.seat

    @property
    def is_primary(self) -> bool:
        return self.keeper.is_primary

    def _sit(self, view: View) -> None:
        """Find my seat in the view. With a new token all that was written under the old one is void."""
        if not self.keeper.sit(view):
            return
        self._written.clear()
        self._sent.clear()
        self._saved = self._skipping = None
        self._failures = 0
        self._gap_due = self.is_primary and not self.precise and view.planned > 0

    def _seek(self, view: View) -> None:
        request = self.keeper.seek(view) if self.session else None
        if isinstance(request, str):
            self._do(Exit(request))
        elif request is not None:
            self._ask(request)

    def _wanted(self, view: View) -> Equipment:
        return self.keeper.wanted(view)

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

    def _go_on_from(self, state: Local) -> None:
        self.state = state
        self.outputs.clear()
        self._snapshots = {state.epoch: state}

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
