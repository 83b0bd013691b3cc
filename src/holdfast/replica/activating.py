"""The HA controller at work: from the rates that fragments see to the hosts that are to process each of them.

It runs on the host that is the primary of the first fragment with a source, so it survives what that survives. What it
commands is written with the seats, and every host does its part of it (`activation.py`). It says again what is not
written yet, and says nothing where all is said: a controller that was stopped and wakes up finds that its commands are
out of date.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.completeness.activation import ActivationPlan, Feed
from holdfast.completeness.controller import Controller, Hysteresis
from holdfast.replica.activation import is_active, turns
from holdfast.replica.agreement import Agreed
from holdfast.replica.member import Member
from holdfast.replica.rates import RateMonitor, Taken
from holdfast.replica.seating import Activate, Seats

__all__ = ["Activating"]

_KEPT_LINES = 20
_TOLERANCE = 0.1
_MEASUREMENTS = 4


@dataclass(slots=True)
class Activating:
    """One pipeline on one host. `tell` is told each change and its reason."""

    plan: ActivationPlan
    member: Member
    tell: Callable[[str, dict[str, object]], None]
    monitors: dict[str, RateMonitor] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    controller: Controller | None = None
    _noted: Any = None

    @property
    def home(self) -> str:
        """The fragment whose primary commands."""
        return self._fed()[0]

    def took(self, fragment: str, taken: Taken) -> None:
        """A replica of this host has run an epoch, whoever has committed it."""
        self.monitors.setdefault(fragment, RateMonitor()).took(taken)

    def tick(self, now: float) -> None:
        """Every now and then: look at the rates, decide, and command what is not commanded yet."""
        self._forget()
        self._write_rates(now)
        place = self.member.serve(self.home)
        if not place.keeper.is_primary or place.agreed is None or place.agreed.ended:
            self.controller = None
            return
        controller = self._begun(place.agreed)
        before, rates = controller.config, self._rates(now)
        began = time.thread_time()  # the host's epochs may have the core meanwhile
        if rates is not None:
            controller.measured(rates)
        took = time.thread_time() - began
        if controller.config != before:
            self._decided(before, controller.config, rates or [], took)
        self._command(controller.config)

    # rates

    def _fed(self) -> list[str]:
        return sorted({feed.fragment for feed in self.plan.feeds.values()})

    def _forget(self) -> None:
        """What a replica saw that does not process any more is no rate of today."""
        for fragment in list(self.monitors):
            agreed = self.member.serve(fragment).agreed
            if agreed is None or not is_active(agreed.seats, self.member.host):
                del self.monitors[fragment]

    def _write_rates(self, now: float) -> None:
        """What the controller cannot see because another host has the first seat of the fragment."""
        home = self.member.serve(self.home)
        if home.keeper.is_primary:
            return
        for fragment in self._fed():
            if self.member.serve(fragment).keeper.is_primary and fragment in self.monitors:
                seen = self.monitors[fragment].rates(now)
                if seen is not None:
                    self.member.agreement.note(fragment, {"rates": list(seen)})

    def _rates(self, now: float) -> list[float] | None:
        """Of each source; None as long as one is not known."""
        found = [self._rate(self.plan.feeds[name], now) for name in self.plan.descriptor.sources]
        known = [each for each in found if each is not None]
        return known if len(known) == len(found) else None

    def _rate(self, feed: Feed, now: float) -> float | None:
        place = self.member.serve(feed.fragment)
        seen: Sequence[float] | None = None
        if feed.fragment in self.monitors:  # this host runs it, as the primary or beside it
            seen = self.monitors[feed.fragment].rates(now)
        if not place.keeper.is_primary and place.agreed is not None:
            seen = place.agreed.notes.get("rates", seen)
        if seen is None:
            return None
        return seen[1] / feed.streams if feed.streams else seen[0]

    # commands

    def _begun(self, agreed: Agreed) -> Controller:
        """The controller, where the one before has left off: it may have been on another host."""
        if self.controller is None:
            known = agreed.notes.get("configuration", {})
            names = [config.name for config in self.plan.descriptor.configs]
            self.lines = list(known.get("decisions", []))
            self.controller = Controller(
                self.plan.descriptor,
                self.plan.strategy,
                Hysteresis(tolerance=_TOLERANCE, measurements=_MEASUREMENTS),
                names.index(known["name"]) if known.get("name") in names else None,
            )
            self._note(self.controller.config, [])
        return self.controller

    def _decided(self, before: int, after: int, rates: Sequence[float], took: float) -> None:
        names = [config.name for config in self.plan.descriptor.configs]
        seen = ", ".join(f"{name} {rate:.4g}/s" for name, rate in zip(self.plan.descriptor.sources, rates, strict=True))
        reason = f"from {names[before]} to {names[after]}: {seen}"
        self.lines = [*self.lines, {"at": time.time(), "to": names[after], "reason": reason}][-_KEPT_LINES:]
        self.tell("configuration", {"to": names[after], "reason": reason, "seconds": took})
        self._note(after, rates)

    def _note(self, config: int, rates: Sequence[float]) -> None:
        name = self.plan.descriptor.configs[config].name
        told = {"name": name, "rates": list(rates), "decisions": self.lines}
        if told != self._noted:
            self.member.agreement.note(self.home, {"configuration": told})
            self._noted = told

    def _command(self, config: int) -> None:
        """Have the hosts process that are to, activations first."""
        wanted = sorted(self.plan.active(config).items(), key=lambda each: -len(each[1][0]))
        for fragment, (active, placed) in wanted:
            agreed = self.member.serve(fragment).agreed
            if agreed is None or agreed.ended or (agreed.seats.active, agreed.seats.placed) == (active, placed):
                continue
            self._ask(fragment, agreed.seats, active, placed)

    def _ask(self, fragment: str, seats: Seats, active: tuple[str, ...], placed: tuple[str, ...]) -> None:
        """The command and the steps that follow from it at once, in one transaction."""
        command = Activate(seats.orders, active, placed)
        after = Seats.from_json(seats.to_json())
        after.change(command)
        answer = self.member.ask(fragment, [command, *turns(after)])
        if answer is not None and answer.done[0]:
            self.tell("command", {"fragment": fragment, "order": answer.seats.orders, "active": ", ".join(active)})
