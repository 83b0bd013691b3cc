"""What a pipeline promises, what is predicted, and what was measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.dashboard.store_watch import Snapshot
from holdfast.replica.prediction import Prices, costs
from holdfast.replica.scheme_report import ASSUMED
from holdfast.replica.schemes import wheel
from holdfast.spans import duration
from holdfast.watch.event_kinds import DecisionMade, GapMeasured, RecoveryDone
from holdfast.watch.pipeline_description import Promise

__all__ = [
    "ErrorBudget",
    "GuaranteeVerdict",
    "GuaranteeView",
    "MeasuredRecovery",
    "SchemeLine",
    "ToldDecision",
    "guarantee_of",
    "verdict_of",
]

_MOST_LINES = 50
_OBJECTIVE = 0.999
"""The part of the time in which a guarantee is to be kept."""


@dataclass(frozen=True, slots=True)
class GuaranteeVerdict:
    """`kept`, `at risk` (by what is predicted), `broken` (by what was measured in the last day) or `none`."""

    state: str
    text: str
    predicted: float | None = None
    longest: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRecovery:
    """A recovery or a gap in the output that was measured."""

    at: float
    fragment: str
    host: str
    what: str
    seconds: float
    within: bool | None


@dataclass(frozen=True, slots=True)
class SchemeLine:
    """One of the six schemes for a fragment: seconds of a gap and money per hour, now and with twice the load."""

    fragment: str
    scheme: str
    summary: str
    seconds: float
    doubled_seconds: float
    money: float
    in_use: bool
    within: bool | None
    assumed: bool


@dataclass(frozen=True, slots=True)
class ToldDecision:
    """A decision as a sentence."""

    at: float
    fragment: str
    about: str
    to: str
    reason: str


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Of a window of `seconds`: how long the pipeline was down for longer than a recovery may take, in `over` of its
    `recoveries`, and how much of the time that the objective leaves for it is used up. `share` is the part of the
    window in which the guarantee was kept; `used` may exceed 1."""

    seconds: float
    objective: float
    recoveries: int
    over: int
    broken_seconds: float
    share: float
    used: float


@dataclass(frozen=True, slots=True)
class GuaranteeView:
    """Everything about the guarantee of a pipeline."""

    declared: Promise
    verdict: GuaranteeVerdict
    predicted: float | None
    worst: float | None
    measured: tuple[MeasuredRecovery, ...]
    schemes: tuple[SchemeLine, ...]
    decisions: tuple[ToldDecision, ...]
    policies: dict[str, str]
    budget: ErrorBudget | None
    """Where a bound on recovery is declared."""


def _declared(snapshot: Snapshot, pipeline: str) -> Promise:
    described = snapshot.descriptions.get(pipeline)
    return Promise() if described is None else described.guarantee


def _measured(snapshot: Snapshot, pipeline: str) -> list[MeasuredRecovery]:
    """The newest first. Where hosts run it, what readers saw is what counts."""
    bound = _declared(snapshot, pipeline).recovery
    events = snapshot.of(pipeline, ("recovery", "gap"))
    gaps = any(isinstance(event, GapMeasured) for event in events)
    found = []
    for event in events:
        if isinstance(event, GapMeasured):
            what, seconds = f"gap in the output, {event.scheme}", event.seconds
        elif isinstance(event, RecoveryDone) and not gaps and not event.host:
            what, seconds = "recovery of the process", event.seconds
        else:
            continue
        within = None if bound is None else seconds <= bound
        found.append(MeasuredRecovery(event.at, event.fragment, event.host, what, seconds, within))
    return found


def _predicted(snapshot: Snapshot, pipeline: str) -> float | None:
    """The longest gap that hosts predict for the schemes in use."""
    found = []
    for part in snapshot.pipelines.get(pipeline, ()):
        agreed = snapshot.agreed.get(part)
        if agreed is not None and agreed.seats.scheme.name in agreed.notes.predicted:
            found.append(agreed.notes.predicted[agreed.seats.scheme.name])
    return max(found, default=None)


def verdict_of(snapshot: Snapshot, pipeline: str) -> GuaranteeVerdict:
    """Whether the guarantee is kept, in a word and a sentence."""
    bound = _declared(snapshot, pipeline).recovery
    measured, predicted = _measured(snapshot, pipeline), _predicted(snapshot, pipeline)
    longest = max((recovery.seconds for recovery in measured), default=None)
    if bound is None:
        text = "no bound on recovery is declared; output is exactly once anyway"
        return GuaranteeVerdict("none", text, predicted, longest)
    broken = sum(recovery.within is False for recovery in measured)
    if broken:
        text = f"{broken} of {len(measured)} recoveries took longer than {duration(bound)}"
        return GuaranteeVerdict("broken", f"{text}, up to {duration(longest or 0.0)}", predicted, longest)
    if predicted is not None and predicted > bound:
        text = f"a failure now is predicted to take {duration(predicted)}, and may take {duration(bound)}"
        return GuaranteeVerdict("at risk", text, predicted, longest)
    if longest is not None:
        text = (
            f"{len(measured)} of {len(measured)} recoveries within {duration(bound)}, the longest {duration(longest)}"
        )
        return GuaranteeVerdict("kept", text, predicted, longest)
    forecast = "nothing has failed yet" if predicted is None else f"a failure now would take {duration(predicted)}"
    return GuaranteeVerdict("kept", f"{forecast}; {duration(bound)} are allowed", predicted, longest)


def guarantee_of(snapshot: Snapshot, pipeline: str) -> GuaranteeView:
    """What is declared, predicted and measured side by side."""
    measured = _measured(snapshot, pipeline)
    decisions = [
        ToldDecision(event.at, event.fragment, event.about, event.to, event.reason)
        for event in snapshot.of(pipeline, ("decision",))
        if isinstance(event, DecisionMade)
    ]
    parts = snapshot.pipelines.get(pipeline, ())
    return GuaranteeView(
        declared=_declared(snapshot, pipeline),
        verdict=verdict_of(snapshot, pipeline),
        predicted=_predicted(snapshot, pipeline),
        worst=max((recovery.seconds for recovery in measured), default=None),
        measured=tuple(measured[:_MOST_LINES]),
        schemes=tuple(line for part in parts for line in _schemes(snapshot, pipeline, part)),
        decisions=tuple(decisions[:_MOST_LINES]),
        policies={
            part: f"{status.checkpoint}" + (f": {status.reason}" if status.reason else "")
            for part in parts
            if (status := snapshot.statuses.get(part)) is not None and status.checkpoint is not None
        },
        budget=_budget(snapshot, pipeline, measured),
    )


def _budget(snapshot: Snapshot, pipeline: str, measured: Sequence[MeasuredRecovery]) -> ErrorBudget | None:
    """Of the last day, or since the first event of the pipeline in it."""
    bound = _declared(snapshot, pipeline).recovery
    if bound is None:
        return None
    first = next((event.at for event in snapshot.events if event.pipeline == pipeline), snapshot.now)
    seconds = max(1.0, snapshot.now - first)
    over = [recovery.seconds - bound for recovery in measured if recovery.seconds > bound]
    allowed = (1 - _OBJECTIVE) * seconds
    return ErrorBudget(
        seconds, _OBJECTIVE, len(measured), len(over), sum(over), 1 - min(1.0, sum(over) / seconds),
        sum(over) / allowed,
    )  # fmt: skip


def _schemes(snapshot: Snapshot, pipeline: str, fragment: str) -> list[SchemeLine]:
    """What each scheme would take and cost, by what hosts have measured; else by what is assumed."""
    agreed, declared = snapshot.agreed.get(fragment), _declared(snapshot, pipeline)
    if agreed is None:
        return []
    metrics = agreed.notes.metrics or ASSUMED
    seconds = agreed.notes.calibration.seconds(metrics, precise=declared.delivery != "gap")
    money = costs(metrics, Prices())
    return [
        SchemeLine(
            fragment,
            scheme.name,
            scheme.summary,
            seconds[scheme].at(1.0),
            seconds[scheme].at(2.0),
            money[scheme].at(1.0),
            agreed.seats.scheme is scheme,
            None if declared.recovery is None else seconds[scheme].at(1.0) <= declared.recovery,
            agreed.notes.metrics is None,
        )
        for scheme in wheel.SCHEMES
    ]
