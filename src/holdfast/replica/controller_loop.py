"""The controller at work: what the primary's host measures about a fragment, the decision that follows, and the steps
along the wheel that it requests.

Measurements and what was learned from them are stored with the fragment, so that the next primary continues with them,
and `status` and `explain` can show them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.recovery import RecoveryReport
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import as_policy
from holdfast.replica.deployment import Deployment
from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.fragment_notes import Decision, RecoveryNote, StoredNotes
from holdfast.replica.host_events import Emit, SchemeDecided
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.measurements import (
    CheckpointSaved,
    EpochMeasured,
    Idled,
    MetricsTracker,
    Resident,
    Stage,
    StateLoaded,
    Took,
)
from holdfast.replica.membership import FragmentPlace, Membership
from holdfast.replica.prediction import recovery_seconds
from holdfast.replica.scheme_controller import (
    ControllerEvent,
    Diverged,
    HostJoined,
    HostLost,
    Measurement,
    Reached,
    RecoveryObserved,
    SchemeController,
    SchemeStep,
    decide,
)
from holdfast.replica.schemes import Scheme
from holdfast.replica.seat_store import Agreed
from holdfast.replica.seats import Turn
from holdfast.replica.silent_hosts import SilentHosts
from holdfast.threads import SYSTEM, Clock

__all__ = ["ControllerLoop"]

_WRITE_SECONDS = 2.0
_MOST_ENTRIES = 20
_ALONE_SECONDS = 30.0
_CONNECTIONS = 2
"""To readers, with the lease, and to inputs: two phases of a recovery that are measured as one."""
_SHORTEST_RESUME = 1e-3
_USUAL_EPOCHS = 20
"""After so many, it is known what an epoch takes."""
_ROW_BYTES = 16.0
"""Assumed of a row of input, since sources do not report bytes. The time to fetch them is part of the epochs."""


@dataclass(slots=True)
class _Term:
    """What a host has seen since it is the primary."""

    silent_hosts: SilentHosts = field(default_factory=SilentHosts)
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class _FirstEpoch:
    """How long the first epoch here took, with the start of its tasks, and how many there were since: as much longer
    than the others takes that of a takeover, so that one can be predicted before there was any."""

    seconds: float = 0.0
    epochs: int = 0

    def after(self, took: float) -> _FirstEpoch:
        return _FirstEpoch(self.seconds if self.epochs else took, self.epochs + 1)


@dataclass(slots=True)
class _Alone:
    """Since when there has been no secondary, and whether that was said."""

    since: float | None = None
    said: bool = False


@dataclass(slots=True)
class ControllerLoop:
    """One fragment on one host. Only on the primary does it decide; `emit` takes each decision and its reason."""

    fragment: str
    deployment: Deployment
    member: Membership
    emit: Emit
    clock: Clock = SYSTEM
    margins: ControllerMargins = field(init=False)
    tracker: MetricsTracker = field(default_factory=MetricsTracker)
    controller: SchemeController | None = None
    decisions: tuple[Decision, ...] = ()
    recoveries: tuple[RecoveryNote, ...] = ()
    _term: _Term | None = None
    """While this host is the primary."""
    _committed_at: float | None = None
    _first: _FirstEpoch = field(default_factory=_FirstEpoch)
    _checkpoint_at: float | None = None
    _replay_seconds: float = 0.0
    _reported_at: float = 0.0
    _written_at: float = 0.0
    _alone: _Alone = field(default_factory=_Alone)

    def __post_init__(self) -> None:
        self.margins = self.deployment.margins
        self.tracker = MetricsTracker(longest_rhythm=float(self.deployment.settings.get("latency", 1.0)))

    # what is seen

    def committed(self, report: EpochReport) -> None:
        before = self._committed_at or report.started
        self._committed_at = report.committed
        took = max(0.0, report.committed - report.started)
        self.tracker = self.tracker.after(
            EpochMeasured(
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
        self._first = self._first.after(took)
        if self._first.epochs == _USUAL_EPOCHS and (seen := self.tracker.measured()) is not None:
            self._see(Took("first_epoch", max(0.0, self._first.seconds - seen.epoch_seconds)))
        self._see(Took("commit", max(0.0, took - report.seconds)))
        policy = as_policy(self.deployment.checkpoint)
        if policy is not None and policy.tier == "stable":
            self._saved(0.0, 0.0, took)  # every epoch is one, and how fast it is written is not measured

    def checkpoint(self, report: CheckpointReport) -> None:
        now = self.clock.monotonic()
        policy = as_policy(self.deployment.checkpoint)
        age = 0.0 if policy is None else policy.copy_seconds
        if self._checkpoint_at is not None:
            age = now - report.seconds - self._checkpoint_at
        self._checkpoint_at = now
        self._saved(report.bytes, report.seconds, age)

    def _saved(self, size: float, seconds: float, age: float) -> None:
        self._see(CheckpointSaved(bytes=size, seconds=seconds, age=age))
        self._see(Took("sync", age + seconds))  # a standby has the last checkpoint

    def recovered(self, report: RecoveryReport, *, leads: bool) -> None:
        """State was read. A new primary has also taken over: that is all the time but the reading and the replay."""
        self._see(StateLoaded(report.bytes, report.loading))
        if leads:
            self._replay_seconds = report.seconds["replay"]
            around = sum(seconds for phase, seconds in report.seconds.items() if phase != "replay")
            self._see(Took("connect", max(0.0, around - report.loading) / _CONNECTIONS))

    def began(self, seconds: float) -> None:
        """The first start took so long: like a takeover, but with nothing to read and to replay."""
        self._see(Took("connect", max(0.0, seconds - self.tracker.took.get("program", 0.0)) / _CONNECTIONS))

    def resident(self, size: float) -> None:
        self._see(Resident(size))

    def took(self, what: Any, seconds: float) -> None:
        self._see(Took(what, seconds))

    def _see(self, observation: Any) -> None:
        self.tracker = self.tracker.after(observation)

    @property
    def rhythm(self) -> float:
        """What passes between two commits, as far as that is known: to a new primary, from the one before."""
        place = self.member.serve(self.fragment)
        if place.keeper.is_primary:  # a takeover may be over before the next tick
            self._begun(place)
        metrics = self.tracker.measured()
        return 0.0 if metrics is None else metrics.rhythm_seconds

    def took_over(
        self, scheme: Scheme, seconds: float, replayed: int, now: float, *, noticed: float = 0.0, steps: float = 0.0
    ) -> None:
        """There was no output for so many seconds around a takeover under a scheme; what of it went by until the
        failure was noticed, and what the steps of the recovery took."""
        state = self._begun(self.member.serve(self.fragment))
        predicted = at_worst = None
        if state is not None and state.metrics is not None:
            precise = state.guarantee.precise
            at_worst = state.calibration.seconds(state.metrics, precise=precise)[scheme].at(1.0)
            predicted = recovery_seconds(scheme, state.metrics, precise=precise, epochs=replayed)
            predicted *= state.calibration.factors.get(scheme, 1.0)
            if replayed:
                state = self._resumed(state, scheme, state.metrics, replayed)
            state, _ = decide(state, RecoveryObserved(now, scheme, seconds, replayed))
            self.controller = state
        recovery = RecoveryNote(
            scheme=scheme.name,
            seconds=seconds,
            noticed=noticed,
            steps=steps,
            predicted=predicted,
            at_worst=at_worst,
            replayed=replayed,
            at=self.clock.now(),
        )
        self.recoveries = (*self.recoveries, recovery)[-_MOST_ENTRIES:]
        self._written_at = 0.0

    def _resumed(
        self, state: SchemeController, scheme: Scheme, metrics: FragmentMetrics, replayed: int
    ) -> SchemeController:
        """How much longer the replay took than its epochs had taken where they were run before. The first time, the
        controller learns it before it compares: what is a phase of its own is no reason to correct all the others."""
        one = metrics.epoch_seconds
        if scheme.receives_input:
            one = max(0.0, one - metrics.fetch_seconds)
        what: Stage = "resume_standing" if scheme.receives_input else "resume"
        known = what in self.tracker.took
        self._see(Took(what, max(0.0, self._replay_seconds - replayed * one)))
        seconds = self.tracker.took[what]
        if known or seconds < _SHORTEST_RESUME:
            return state
        learnt = (
            replace(metrics, resume_standing_seconds=seconds)
            if scheme.receives_input
            else replace(metrics, resume_seconds=seconds)
        )
        return replace(state, metrics=learnt)

    # what is done

    def tick(self, now: float) -> None:
        """Every now and then: measure, decide, and write it down."""
        place = self.member.serve(self.fragment)
        leads = place.keeper.is_primary and place.agreed is not None and not place.agreed.ended
        if not leads:
            self._term, self.controller = None, None
            return
        state = self._begun(place)
        if state is None or place.agreed is None:
            return
        turned = place.agreed.seats.scheme
        if turned is not (state.stepping or state.scheme):  # by hand: a step that was under way is not any more
            state = replace(state, scheme=turned, target=turned, stepping=None)
        if self._committed_at is not None and self.clock.now() - self._committed_at > self.margins.report:
            self._see(Idled(self.margins.report))
            self._committed_at = self.clock.now()
        self._look_for_secondary(place.agreed, now)
        for event in self._events(place, state, now):
            state = self._decide(state, event, place)
        self.controller = state
        if now - self._written_at >= _WRITE_SECONDS:
            self._written_at = now
            self.member.agreement.note(self.fragment, self.notes())

    def _look_for_secondary(self, agreed: Agreed, now: float) -> None:
        """Say when there has been no secondary for a while where there should be one: until one comes, a failure of
        this host takes as long as a new start."""
        if agreed.seats.secondary is not None or not agreed.seats.scheme.needs_secondary:
            if self._alone.said:
                self._log_decision("there is a secondary again", None)
            self._alone = _Alone()
        elif self._alone.since is None:
            self._alone.since = now
        elif not self._alone.said and now - self._alone.since >= _ALONE_SECONDS:
            self._alone.said = True
            self._log_decision(
                f"no secondary for {_ALONE_SECONDS:.0f} s: the guarantee of {agreed.seats.scheme.name} is"
                " not kept until a host joins", None,
            )  # fmt: skip

    def _begun(self, place: FragmentPlace) -> SchemeController | None:
        """The controller, with what the primary before has learnt."""
        if self._term is not None or place.agreed is None:
            return self.controller
        notes = place.agreed.notes
        self._term = _Term()
        metrics = self.tracker.measured()
        known, own = notes.tracker, self.tracker
        if known is not None:
            metrics = known.measured()  # what the primary before knew: its predictions are judged by what comes now
            loaded = own.loaded if own.loaded.seconds else known.loaded
            self.tracker = replace(known, took={**known.took, **own.took}, loaded=loaded, idle_bytes=own.idle_bytes)
        self.decisions, self.recoveries = notes.decisions, notes.recoveries
        scheme = place.agreed.seats.scheme
        self.controller = SchemeController(
            self.deployment.guarantee, self.margins, self.deployment.hosts or tuple(place.agreed.seats.members),
            scheme, scheme, metrics=metrics, calibration=notes.calibration,
        )  # fmt: skip
        return self.controller

    def _events(self, place: FragmentPlace, state: SchemeController, now: float) -> list[ControllerEvent]:
        agreed = place.agreed
        assert agreed is not None
        assert self._term is not None
        found = self._hosts(agreed, state, now, self._term.silent_hosts)
        divergence = agreed.notes.diverged
        if divergence is not None and not self._term.diverged:
            self._term.diverged = True
            found.append(Diverged(now, divergence.host, divergence.epoch))
        scheme = agreed.seats.scheme
        if state.stepping is scheme and (not scheme.needs_secondary or agreed.seats.secondary_ready):
            found.append(Reached(now, scheme))
        metrics = self.tracker.measured()
        if metrics is not None and now - self._reported_at >= self.margins.report:
            self._reported_at = now
            found.append(Measurement(now, metrics))
        return found

    def _hosts(self, agreed: Agreed, state: SchemeController, now: float, silent: SilentHosts) -> list[ControllerEvent]:
        """Which hosts are there and which are not, for long. Where no secondary is needed, all but the primary end, and
        none is missed."""
        members, needed = agreed.seats.members, agreed.seats.scheme.needs_secondary
        silent.look(state.hosts, members, now, needed=needed)
        lost = {host for host in (*state.hosts, *members) if silent.is_lost(host)} - {self.member.host}
        joined = [host for host in members if host not in state.hosts and host not in lost]
        return [
            *(HostJoined(now, host) for host in joined),
            *(HostLost(now, host) for host in state.hosts if host in lost),
        ]

    def _decide(self, state: SchemeController, event: ControllerEvent, place: FragmentPlace) -> SchemeController:
        state, actions = decide(state, event)
        if self.deployment.scheme is not None:  # the user has fixed it: only the predictions are of interest
            return replace(state, scheme=self.deployment.scheme, target=self.deployment.scheme, stepping=None)
        for action in actions:
            if isinstance(action, SchemeStep):
                assert place.agreed is not None
                answer = self.member.ask(self.fragment, [Turn(place.agreed.seats.turns, action.to)])
                if answer is None:  # the store is away: it is asked for again
                    return replace(state, stepping=None)
                if not answer.done[0]:  # another process has turned the wheel
                    now = answer.seats.scheme
                    return replace(state, scheme=now, target=now, stepping=None)
            self._log_decision(action.reason, action.to if isinstance(action, SchemeStep) else None)
        return state

    def _log_decision(self, reason: str, to: Scheme | None) -> None:
        decision = Decision(self.clock.now(), None if to is None else to.name, reason)
        self.emit(SchemeDecided(self.fragment, decision.to, reason))
        self.decisions = (*self.decisions, decision)[-_MOST_ENTRIES:]
        self._written_at = 0.0

    def notes(self) -> StoredNotes:
        """What is known of the fragment."""
        metrics, controller = self.tracker.measured(), self.controller
        known = StoredNotes(
            measuring=self.tracker,
            decisions=self.decisions,
            recoveries=self.recoveries,
            hosts=None if controller is None else tuple(controller.hosts),
        )
        if metrics is None or controller is None:
            return known
        seconds = controller.calibration.seconds(metrics, precise=self.deployment.precise)
        return msgspec.structs.replace(
            known,
            measured=metrics,
            predicted={scheme.name: seconds[scheme].at(1.0) for scheme in controller.possible},
            calibration=controller.calibration.to_json(),
        )
