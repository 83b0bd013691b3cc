"""What hosts record about a fragment in the meta store, apart from its seats: decisions, measurements, problems.

Each host writes its own notes by name (`Agreement.note`); notes of other hosts stay. Notes are decoded on demand,
because every heartbeat reads them and few need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.measurements import MetricsTracker
from holdfast.replica.prediction import RecoveryCalibration
from holdfast.stored_json import JsonForm

__all__ = ["ConfigurationNote", "Decision", "Divergence", "FragmentNotes", "RecoveryNote", "SourceRates", "StoredNotes"]


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


class SourceRates(msgspec.Struct, frozen=True, array_like=True):
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


class StoredNotes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Notes as they are stored, each under its name. None: nothing is said of it, and what the store has stays."""

    decisions: tuple[Decision, ...] | None = None
    recoveries: tuple[RecoveryNote, ...] | None = None
    hosts: tuple[str, ...] | None = None
    measuring: MetricsTracker | None = None
    measured: FragmentMetrics | None = None
    calibration: Mapping[str, float | Sequence[float]] | None = None
    predicted: Mapping[str, float] | None = None
    diverged: Divergence | None = None
    failing: Mapping[str, str] | None = None
    failed: str | None = None
    rates: SourceRates | None = None
    configuration: ConfigurationNote | None = None

    def encode(self) -> str:
        return _FORM.encode(self)


_FORM = JsonForm(StoredNotes, "the notes about a fragment")


@dataclass(frozen=True)
class FragmentNotes:
    """The notes of a fragment, by their `text` in the store."""

    text: str = "{}"

    @cached_property
    def _stored(self) -> StoredNotes:
        return _FORM.decode(self.text)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return self._stored.decisions or ()

    @property
    def recoveries(self) -> tuple[RecoveryNote, ...]:
        return self._stored.recoveries or ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that the controller counts on."""
        return self._stored.hosts or ()

    @property
    def tracker(self) -> MetricsTracker | None:
        return self._stored.measuring

    @property
    def metrics(self) -> FragmentMetrics | None:
        return self._stored.measured

    @property
    def calibration(self) -> RecoveryCalibration:
        return RecoveryCalibration.from_json(self._stored.calibration or {})

    @property
    def predicted(self) -> Mapping[str, float]:
        """Recovery times by the names of the schemes that are possible."""
        return self._stored.predicted or {}

    @property
    def diverged(self) -> Divergence | None:
        return self._stored.diverged

    @property
    def failing(self) -> Mapping[str, str]:
        """Hosts on which the fragment has failed again and again, and the last problem of each."""
        return self._stored.failing or {}

    @property
    def failed(self) -> str | None:
        """Why the fragment has ended before its input did."""
        return self._stored.failed

    @property
    def rates(self) -> SourceRates | None:
        return self._stored.rates

    @property
    def configuration(self) -> ConfigurationNote | None:
        return self._stored.configuration
