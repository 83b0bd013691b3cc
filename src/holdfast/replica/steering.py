"""The controller at work: what the primary's host measures of a fragment, what follows from it, and the steps of the
wheel it asks for.

What was measured and learnt is written down with the fragment, so that whoever is the primary next goes on with it, and
so that `status` and `explain` can show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.epoch.checkpoints import CheckpointReport
from holdfast.epoch.recovery import RecoveryReport
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import as_policy
from holdfast.replica.absence import Absence
from holdfast.replica.agreement import Agreed
from holdfast.replica.caution import Caution
from holdfast.replica.controller import (
    Controller,
    Diverged,
    Event,
    HostJoined,
    HostLost,
    Measurement,
    Move,
    Reached,
    RecoveryObserved,
    decide,
)
from holdfast.replica.deployment import Deployment
from holdfast.replica.measuring import CheckpointSaved, EpochCommitted, Idled, Measuring, Resident, StateLoaded, Took
from holdfast.replica.member import Member, Place
from holdfast.replica.predict import Calibration, Measured, recovery_seconds
from holdfast.replica.schemes import Scheme
from holdfast.replica.seating import Turn

__all__ = ["Steering"]

_WRITE_SECONDS = 2.0
_KEPT_LINES = 20
_ALONE_SECONDS = 30.0
_CONNECTIONS = 2
"""To readers, with the lease, and to inputs: they are told apart by the schemes, and not measured apart."""
_ROW_BYTES = 16.0
"""Assumed of a row of input: sources do not tell bytes. What it takes to get them is in the epochs, as measured."""


@dataclass(slots=True)
class Steering:
    """One fragment on one host. Only the primary steers; `tell` is told each decision and its reason."""

    fragment: str
    deployment: Deployment
    member: Member
    tell: Callable[[str, dict[str, object]], None]
    caution: Caution = field(init=False)
    measuring: Measuring = field(default_factory=Measuring)
    controller: Controller | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    _leads: bool = False
    _committed_at: float | None = None
    _checkpoint_at: float | None = None
    _replay_seconds: float = 0.0
    _reported_at: float = 0.0
    _written_at: float = 0.0
    _diverged: bool = False
    _alone_since: float | None = None
    _told_alone: bool = False
    _absence: Absence = field(default_factory=Absence)

    def __post_init__(self) -> None:
        self.caution = self.deployment.caution
        self.measuring = Measuring(longest_rhythm=float(self.deployment.settings.get("latency", 1.0)))

    # what is seen

    def committed(self, report: EpochReport) -> None:
        before = self._committed_at or report.started
        self._committed_at = report.committed
        took = max(0.0, report.committed - report.started)
        self.measuring = self.measuring.after(
            EpochCommitted(
                seconds=max(1e-3, report.committed - before),
                busy_seconds=took,
                cpu_seconds=sum(report.cpu.values()),
                fetch_seconds=report.fetching,
                rows=report.rows,
                input_bytes=_ROW_BYTES * report.rows,
                output_bytes=report.streamed_bytes,
                state_bytes=report.state_bytes,
                changed_bytes=report.written_bytes - report.streamed_bytes,
            )
        )
        self._see(Took("commit", max(0.0, took - report.seconds)))
        if self.deployment.checkpoint == "delta":  # every epoch is one, and how fast it is written is not measured
            self._saved(0.0, 0.0, took)

    def checkpoint(self, report: CheckpointReport) -> None:
        now = time.monotonic()
        policy = as_policy(self.deployment.checkpoint)
        age = 0.0 if policy is None else policy.seconds
        if self._checkpoint_at is not None:
            age = now - report.seconds - self._checkpoint_at
        self._checkpoint_at = now
        self._saved(report.bytes, report.seconds, age)

    def _saved(self, size: float, seconds: float, age: float) -> None:
        self._see(CheckpointSaved(bytes=size, seconds=seconds, age=age))
        self._see(Took("sync", age + seconds))  # a standby has the last checkpoint

    def recovered(self, report: RecoveryReport, *, leads: bool) -> None:
        """State was read. Who leads has also taken over the house: all but the reading and the replay."""
        self._see(StateLoaded(report.bytes, report.loading))
        if leads:
            self._replay_seconds = report.seconds["replay"]
            around = sum(seconds for phase, seconds in report.seconds.items() if phase != "replay")
            self._see(Took("connect", max(0.0, around - report.loading) / _CONNECTIONS))

    def began(self, seconds: float) -> None:
        """The first start took so long: like a takeover, but with nothing to read and to replay."""
        self._see(Took("connect", max(0.0, seconds - self.measuring.took.get("program", 0.0)) / _CONNECTIONS))

    def resident(self, size: float) -> None:
        self._see(Resident(size))

    def took(self, what: Any, seconds: float) -> None:
        self._see(Took(what, seconds))

    def _see(self, observation: Any) -> None:
        self.measuring = self.measuring.after(observation)

    @property
    def rhythm(self) -> float:
        """What passes between two commits, as far as that is known."""
        seen = self.measuring.measured()
        return 0.0 if seen is None else seen.rhythm_seconds

    def took_over(
        self, scheme: Scheme, seconds: float, replayed: int, now: float, *, noticed: float = 0.0, steps: float = 0.0
    ) -> None:
        """There was no output for so many seconds around a takeover under a scheme; what of it went by until the
        failure was noticed, and what the steps of the recovery took."""
        state = self._begun(self.member.serve(self.fragment))
        predicted = at_worst = None
        if state is not None and state.seen is not None:
            precise = state.guarantee.precise
            at_worst = state.calibration.seconds(state.seen, precise=precise)[scheme].at(1.0)
            predicted = recovery_seconds(scheme, state.seen, precise=precise, epochs=replayed)
            predicted *= state.calibration.factors.get(scheme, 1.0)
            if replayed:
                self._resumed(scheme, state.seen, replayed)
            state, _ = decide(state, RecoveryObserved(now, scheme, seconds, replayed))
            self.controller = state
        told = {
            "scheme": scheme.value,
            "seconds": seconds,
            "noticed": noticed,
            "steps": steps,
            "predicted": predicted,  # for as much as was replayed
            "at_worst": at_worst,
            "replayed": replayed,
            "at": time.time(),
        }
        self.recoveries = [*self.recoveries, told][-_KEPT_LINES:]
        self._written_at = 0.0

    def _resumed(self, scheme: Scheme, seen: Measured, replayed: int) -> None:
        """How much longer the replay took than its epochs had taken where they were run before."""
        one = seen.epoch_seconds
        if scheme.equipment.input:
            one = max(0.0, one - seen.fetch_seconds)
        self._see(Took("resume", max(0.0, self._replay_seconds - replayed * one)))

    # what is done

    def tick(self, now: float) -> None:
        """Every now and then: measure, decide, and write it down."""
        place = self.member.serve(self.fragment)
        leads = place.keeper.is_primary and place.agreed is not None and not place.agreed.ended
        if not leads:
            self._leads, self.controller = False, None
            return
        state = self._begun(place)
        if state is None or place.agreed is None:
            return
        turned = place.agreed.seats.scheme
        if turned is not (state.stepping or state.scheme):  # by hand: a step that was under way is not any more
            state = replace(state, scheme=turned, target=turned, stepping=None)
        if self._committed_at is not None and time.time() - self._committed_at > self.caution.report:
            self._see(Idled(self.caution.report))
            self._committed_at = time.time()
        self._look_for_the_other(place.agreed, now)
        for event in self._events(place, state, now):
            state = self._decide(state, event, place)
        self.controller = state
        if now - self._written_at >= _WRITE_SECONDS:
            self._written_at = now
            self.member.agreement.note(self.fragment, self.notes())

    def _look_for_the_other(self, agreed: Agreed, now: float) -> None:
        """Say when there has been no secondary for a while where there should be one: until one comes, a failure of
        this host takes as long as a new start."""
        if agreed.seats.secondary is not None or agreed.seats.scheme is Scheme.PASSIVE_REPLICATION:
            if self._told_alone:
                self._tell("there is a secondary again", None)
            self._alone_since, self._told_alone = None, False
        elif self._alone_since is None:
            self._alone_since = now
        elif not self._told_alone and now - self._alone_since >= _ALONE_SECONDS:
            self._told_alone = True
            self._tell(
                f"there has been no secondary for {_ALONE_SECONDS:.0f} s: what {agreed.seats.scheme.value} promises is"
                " not kept until a host joins", None,
            )  # fmt: skip

    def _begun(self, place: Place) -> Controller | None:
        """The controller, with what the primary before has learnt."""
        if self._leads or place.agreed is None:
            return self.controller
        notes = place.agreed.notes
        self._leads, self._diverged, self._absence = True, False, Absence()
        seen = self.measuring.measured()
        if "measuring" in notes:
            known, own = Measuring.from_json(notes["measuring"]), self.measuring
            seen = known.measured()  # what the primary before knew: its predictions are judged by what comes now
            loaded = own.loaded if own.loaded.seconds else known.loaded
            self.measuring = replace(known, took={**known.took, **own.took}, loaded=loaded, idle_bytes=own.idle_bytes)
        self.lines, self.recoveries = list(notes.get("decisions", [])), list(notes.get("recoveries", []))
        scheme = place.agreed.seats.scheme
        calibration = Calibration.from_json(notes["calibration"]) if "calibration" in notes else Calibration()
        self.controller = Controller(
            self.deployment.guarantee, self.caution, self.deployment.hosts or tuple(place.agreed.seats.members),
            scheme, scheme, seen=seen, calibration=calibration,
        )  # fmt: skip
        return self.controller

    def _events(self, place: Place, state: Controller, now: float) -> list[Event]:
        agreed = place.agreed
        assert agreed is not None
        found = self._hosts(agreed, state, now)
        if "diverged" in agreed.notes and not self._diverged:
            self._diverged = True
            told = agreed.notes["diverged"]
            found.append(Diverged(now, told["host"], told["epoch"]))
        scheme, second = agreed.seats.scheme, agreed.seats.secondary
        member = None if second is None else agreed.seats.members.get(second.host)
        there = scheme is Scheme.PASSIVE_REPLICATION or (member is not None and member.ready is scheme)
        if state.stepping is scheme and there:
            found.append(Reached(now, scheme))
        seen = self.measuring.measured()
        if seen is not None and now - self._reported_at >= self.caution.report:
            self._reported_at = now
            found.append(Measurement(now, seen))
        return found

    def _hosts(self, agreed: Agreed, state: Controller, now: float) -> list[Event]:
        """Who is there and who is not, for long. With passive replication all but the primary end: none is missed."""
        members, needed = agreed.seats.members, agreed.seats.scheme is not Scheme.PASSIVE_REPLICATION
        self._absence.look(state.hosts, members, now, needed=needed)
        lost = {each for each in (*state.hosts, *members) if self._absence.is_lost(each)} - {self.member.host}
        joined = [each for each in members if each not in state.hosts and each not in lost]
        return [
            *(HostJoined(now, each) for each in joined),
            *(HostLost(now, each) for each in state.hosts if each in lost),
        ]

    def _decide(self, state: Controller, event: Event, place: Place) -> Controller:
        state, actions = decide(state, event)
        if self.deployment.scheme is not None:  # the user has said which one: only what is predicted is of interest
            return replace(state, scheme=self.deployment.scheme, target=self.deployment.scheme, stepping=None)
        for action in actions:
            if isinstance(action, Move):
                assert place.agreed is not None
                answer = self.member.ask(self.fragment, [Turn(place.agreed.seats.turns, action.to)])
                if answer is None:  # the store is away: it is asked for again
                    return replace(state, stepping=None)
                if not answer.done[0]:  # somebody else has turned the wheel
                    now = answer.seats.scheme
                    return replace(state, scheme=now, target=now, stepping=None)
            self._tell(action.reason, action.to if isinstance(action, Move) else None)
        return state

    def _tell(self, reason: str, to: Scheme | None) -> None:
        told = {"at": time.time(), "to": None if to is None else to.value, "reason": reason}
        self.tell("decision", {"fragment": self.fragment, "to": told["to"], "reason": reason})
        self.lines = [*self.lines, told][-_KEPT_LINES:]
        self._written_at = 0.0

    def notes(self) -> Mapping[str, Any]:
        """What is known of the fragment, to be written down."""
        seen = self.measuring.measured()
        found: dict[str, Any] = {
            "measuring": self.measuring.to_json(),
            "decisions": self.lines,
            "recoveries": self.recoveries,
        }
        if self.controller is not None:
            found["hosts"] = list(self.controller.hosts)
        if seen is not None and self.controller is not None:
            seconds = self.controller.calibration.seconds(seen, precise=self.deployment.precise)
            found["measured"] = seen.to_json()
            found["predicted"] = {each.value: seconds[each].at(1.0) for each in self.controller.possible}
            found["calibration"] = self.controller.calibration.to_json()
        return found
