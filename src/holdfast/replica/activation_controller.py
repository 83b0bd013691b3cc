"""The HA controller at work: from the input rates of fragments to the hosts that should process each of them.

It runs on the host that is the primary of the first fragment with a source, so it survives whatever that host's seat
survives. Its commands are written with the seats, and every host carries out its part (`activation_rules.py`). The
controller repeats a command until it is written, and then writes nothing more. If a controller was stopped and wakes
up, it finds that its commands are out of date.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.laar.host_strategy import ActivationPlan, Feed
from holdfast.laar.rate_controller import ON_HOSTS, RateController
from holdfast.replica.activation_rules import is_active, turns
from holdfast.replica.fragment_notes import ConfigurationNote, Decision, SourceRates, StoredNotes
from holdfast.replica.host_events import CommandGiven, ConfigurationChosen, Emit
from holdfast.replica.membership import Membership
from holdfast.replica.rates import EpochIntake, RateMonitor
from holdfast.replica.seat_store import Agreed
from holdfast.replica.seats import Activate, Seats

__all__ = ["ActivationController"]

_MOST_ENTRIES = 20
_COUNT_SECONDS = 2.0


@dataclass(slots=True)
class ActivationController:
    """One pipeline on one host. `emit` takes each change and its reason; `written` says how many rows a p-stream has
    got."""

    plan: ActivationPlan
    member: Membership
    emit: Emit
    written: Callable[[str], int]
    now: Callable[[], float] = time.time
    monitors: dict[str, RateMonitor] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()
    controller: RateController | None = None
    _noted: ConfigurationNote | None = None
    _seen_rates: list[float] = field(default_factory=list)
    """Those of the last decision."""
    _counted_at: float = 0.0
    _stored_rates: dict[str, SourceRates] = field(default_factory=dict)
    _pushed: dict[str, tuple[int, RateMonitor]] = field(default_factory=dict)

    @property
    def home(self) -> str | None:
        """The fragment whose primary commands: the first with a source that has not ended."""
        return next((name for name in self._fed() if not self._ended(name)), None)

    def took(self, fragment: str, taken: EpochIntake) -> None:
        """A replica of this host has begun an epoch, whoever is going to commit it."""
        monitor = self.monitors.get(fragment)
        if monitor is not None:
            monitor.took(taken)

    def waits(self, fragment: str, at: float, rows: int | None) -> None:
        """A replica of this host has ended an epoch, and so many rows wait at its sources, where that is known."""
        monitor = self.monitors.get(fragment)
        if monitor is not None and rows is not None:
            monitor.waits(at, rows)

    def tick(self, now: float) -> None:
        """Every now and then: look at the rates, decide, and command what is not commanded yet. `now` is of a clock
        that is never set."""
        self._watch(now)
        home = self.home
        place = None if home is None else self.member.serve(home)
        if place is None or home is None or not place.keeper.is_primary or place.agreed is None:
            self.controller = self._noted = None
            self._pushed.clear()
            self._write_rates(now)
            return
        controller = self._begun(place.agreed)
        before, rates = controller.config, self._rates(now)
        began = time.thread_time()  # the host's epochs may have the core meanwhile
        if rates is not None:
            counts = now - self._counted_at >= _COUNT_SECONDS
            self._counted_at = now if counts else self._counted_at
            controller.measured(rates, counts=counts)
        took = time.thread_time() - began
        if controller.config != before:
            self._decided(before, controller.config, rates or [], took)
        self._note(home, controller)
        self._command(controller.config)

    # rates

    def _fed(self) -> list[str]:
        return sorted({feed.fragment for feed in self.plan.feeds.values()})

    def _ended(self, fragment: str) -> bool:
        agreed = self.member.serve(fragment).agreed
        return agreed is not None and agreed.ended

    def _watch(self, now: float) -> None:
        """Look at what is processed here. What a replica saw before it was deactivated is no rate of today."""
        for fragment in self._fed():
            agreed = self.member.serve(fragment).agreed
            if agreed is None or agreed.ended or not is_active(agreed.seats, self.member.host):
                self.monitors.pop(fragment, None)
            elif fragment not in self.monitors:
                self.monitors[fragment] = RateMonitor(now)

    def _write_rates(self, now: float) -> None:
        """What the controller cannot see because another host has the first seat of the fragment."""
        for fragment in self._fed():
            keeper, monitor = self.member.serve(fragment).keeper, self.monitors.get(fragment)
            if keeper.is_primary and keeper.seat is not None and monitor is not None:
                seen = monitor.rates(now)
                stored = None if seen is None else SourceRates(*seen, keeper.seat.token)
                if stored is not None and stored != self._stored_rates.get(fragment):
                    self._stored_rates[fragment] = stored
                    self.member.agreement.note(fragment, StoredNotes(rates=stored))

    def _rates(self, now: float) -> list[float] | None:
        """Of each source; None as long as one is not known."""
        feeds = {name: self.plan.feeds[name] for name in self.plan.descriptor.sources}
        found = [
            self._arriving(name, feed, now) if feed.streams else self._rate(feed, now) for name, feed in feeds.items()
        ]
        known = [rate for rate in found if rate is not None]
        return known if len(known) == len(found) else None

    def _rate(self, feed: Feed, now: float) -> float | None:
        if self._ended(feed.fragment):
            return 0.0
        place, monitor = self.member.serve(feed.fragment), self.monitors.get(feed.fragment)
        seen: Sequence[float] | None = None if monitor is None else monitor.rates(now)
        if not place.keeper.is_primary and place.agreed is not None:
            first, stored = place.agreed.seats.primary, place.agreed.notes.rates
            if stored is not None and first is not None and stored.token == first.token:  # not of a primary before
                return stored.entered
        return None if seen is None else seen[0]

    def _arriving(self, stream: str, feed: Feed, now: float) -> float | None:
        """What clients have pushed, whoever has read how much of it."""
        if self._ended(feed.fragment):
            return 0.0
        rows = self.written(stream)
        before, monitor = self._pushed.get(stream, (rows, RateMonitor(now)))
        monitor.took(EpochIntake(now, 0, rows - before))
        self._pushed[stream] = (rows, monitor)
        seen = monitor.rates(now)
        return None if seen is None else seen[1]

    # commands

    def _begun(self, agreed: Agreed) -> RateController:
        """The controller, where the one before has left off: it may have been on another host."""
        if self.controller is None:
            known = agreed.notes.configuration or self._noted_elsewhere() or ConfigurationNote(name="")
            names = [config.name for config in self.plan.descriptor.configs]
            self.decisions = known.decisions
            self.controller = RateController(
                self.plan.descriptor,
                self.plan.strategy,
                ON_HOSTS,
                names.index(known.name) if known.name in names else None,
                known.recent,
                known.above,
            )
            self._seen_rates = []
        return self.controller

    def _noted_elsewhere(self) -> ConfigurationNote | None:
        """By the primary of a fragment that has ended since."""
        agreed = (self.member.serve(name).agreed for name in self._fed())
        notes = [None if found is None else found.notes.configuration for found in agreed]
        return next((note for note in reversed(notes) if note is not None), None)

    def _decided(self, before: int, after: int, rates: Sequence[float], took: float) -> None:
        names = [config.name for config in self.plan.descriptor.configs]
        seen = ", ".join(f"{name} {rate:.4g}/s" for name, rate in zip(self.plan.descriptor.sources, rates, strict=True))
        reason = f"from {names[before]} to {names[after]}: {seen}"
        self.decisions = (*self.decisions, Decision(self.now(), names[after], reason))[-_MOST_ENTRIES:]
        self.emit(ConfigurationChosen(names[after], reason, took))
        self._seen_rates = list(rates)

    def _note(self, home: str, controller: RateController) -> None:
        """What another host needs to go on from here, also what speaks for a decision that was not yet made: the first
        seat may move from host to host faster than one of them can be sure."""
        name = self.plan.descriptor.configs[controller.config].name
        noted = ConfigurationNote(
            name=name,
            rates=tuple(self._seen_rates),
            decisions=self.decisions,
            recent=tuple(tuple(rates) for rates in controller.recent),
            above=controller.above,
        )
        if noted != self._noted:
            self.member.agreement.note(home, StoredNotes(configuration=noted))
            self._noted = noted

    def _command(self, config: int) -> None:
        """Have the hosts process that are to, activations first."""
        wanted = sorted(self.plan.active(config).items(), key=lambda item: -len(item[1][0]))
        for fragment, (active, placed) in wanted:
            agreed = self.member.serve(fragment).agreed
            if agreed is None or agreed.ended:
                continue
            able = self._able(agreed, active, placed)
            if (agreed.seats.active, agreed.seats.placed) != (able, placed):
                self._ask(fragment, agreed.seats, able, placed)

    def _able(self, agreed: Agreed, active: tuple[str, ...], placed: tuple[str, ...]) -> tuple[str, ...]:
        """Of the hosts that are to process those that can: not one on which the fragment has failed again and again,
        and not two whose outputs differ."""
        failing = agreed.notes.failing
        able = tuple(host for host in active if host not in failing)
        able = able or tuple(host for host in placed if host not in failing)[:1] or active
        if agreed.notes.diverged is not None and len(able) > 1:
            first = agreed.seats.primary
            able = (first.host,) if first is not None and first.host in able else able[:1]
        return able

    def _ask(self, fragment: str, seats: Seats, active: tuple[str, ...], placed: tuple[str, ...]) -> None:
        """The command and the steps that follow from it at once, in one transaction."""
        command = Activate(seats.orders, active, placed)
        after = replace(seats, members=dict(seats.members))
        after.change(command)
        answer = self.member.ask(fragment, [command, *turns(after)])
        if answer is not None and answer.done[0]:
            self.emit(CommandGiven(fragment, answer.seats.orders, ", ".join(active)))
