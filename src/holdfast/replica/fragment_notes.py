"""What hosts note about a fragment in the meta store, beside its seats: decisions, recoveries, measurements, problems.

Each host writes the notes it knows, by name (`Agreement.note`), and what others have written stays. Notes are decoded
when they are asked for: a heartbeat reads them often and needs few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.measurements import MetricsTracker
from holdfast.replica.prediction import RecoveryCalibration

__all__ = ["ConfigurationNote", "Decision", "Divergence", "FragmentNotes", "RecoveryNote", "SourceRates"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a controller decided, when by the wall clock, and why; `to` is None where it only gave a notice."""

    at: float
    to: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryNote:
    """A takeover under a scheme: the gap in the output, which part of it passed until the failure was `noticed`, and
    what the `steps` of the recovery took; stores of early versions do not have these parts. `predicted` is for as many
    epochs as were replayed."""

    scheme: str
    seconds: float
    noticed: float | None = None
    steps: float | None = None
    predicted: float | None = None
    at_worst: float | None = None
    replayed: int = 0
    at: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """A replica whose output of an epoch was not what the other had committed."""

    host: str
    epoch: int
    what: str


@dataclass(frozen=True, slots=True)
class SourceRates:
    """Rows per second from outside and from p-streams, as the primary with this token has measured them."""

    entered: float
    streamed: float
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationNote:
    """The input configuration that is in use, and what the next controller needs to continue from there."""

    name: str
    rates: tuple[float, ...] = ()
    decisions: tuple[Decision, ...] = ()
    recent: tuple[tuple[float, ...], ...] = ()
    above: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ConfigurationNote:
        return cls(
            name=value["name"],
            rates=tuple(value.get("rates", ())),
            decisions=tuple(Decision(**decision) for decision in value.get("decisions", ())),
            recent=tuple(tuple(rates) for rates in value.get("recent", ())),
            above=value.get("above", 0),
        )


@dataclass(frozen=True, slots=True)
class FragmentNotes:
    """The notes of a fragment, as `stored` by name."""

    stored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(Decision(**decision) for decision in self.stored.get("decisions", ()))

    @property
    def recoveries(self) -> tuple[RecoveryNote, ...]:
        return tuple(RecoveryNote(**recovery) for recovery in self.stored.get("recoveries", ()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that the controller counts on."""
        return tuple(self.stored.get("hosts", ()))

    @property
    def tracker(self) -> MetricsTracker | None:
        found = self.stored.get("measuring")
        return None if found is None else MetricsTracker.from_json(found)

    @property
    def metrics(self) -> FragmentMetrics | None:
        found = self.stored.get("measured")
        return None if found is None else FragmentMetrics.from_json(found)

    @property
    def calibration(self) -> RecoveryCalibration:
        return RecoveryCalibration.from_json(self.stored.get("calibration", {}))

    @property
    def predicted(self) -> Mapping[str, float]:
        """Recovery times by the names of the schemes that are possible."""
        return dict(self.stored.get("predicted", {}))

    @property
    def diverged(self) -> Divergence | None:
        found = self.stored.get("diverged")
        return None if found is None else Divergence(**found)

    @property
    def failing(self) -> Mapping[str, str]:
        """Hosts on which the fragment has failed again and again, and the last problem of each."""
        return dict(self.stored.get("failing", {}))

    @property
    def failed(self) -> str | None:
        """Why the fragment has ended before its input did."""
        found = self.stored.get("failed")
        return None if found is None else str(found)

    @property
    def rates(self) -> SourceRates | None:
        found = self.stored.get("rates")
        return None if found is None else SourceRates(*found)

    @property
    def configuration(self) -> ConfigurationNote | None:
        found = self.stored.get("configuration")
        return None if found is None else ConfigurationNote.from_json(found)
