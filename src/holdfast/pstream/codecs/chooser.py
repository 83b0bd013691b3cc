"""The chooser: which encoding each column of a stream gets, revisited when the stream changes.

It minimises the time to encode a batch plus the time to write it at the bandwidth there is. Every batch it compares
what the encoder reached with what was expected, which costs nothing; now and then, within a stated share of the
encoding time, it looks at the statistics of a small sample. When either has moved, the candidates are tried on a
sample, and the choice changes if another one is clearly better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import polars as pl

from holdfast.pstream.codecs.candidates import candidates
from holdfast.pstream.codecs.column import is_encodable
from holdfast.pstream.codecs.costs import Costs, Estimate
from holdfast.pstream.codecs.encoding import Encoding
from holdfast.pstream.codecs.frame import Encoded, Lossy
from holdfast.pstream.codecs.statistics import Statistics, have_moved, sample_of, statistics_of

__all__ = ["Choice", "Chooser"]

_SAMPLE = 32_768
_LOOK = 2_048
_FEWEST_ROWS = 64
_EQUAL = 1.05
_SHORT = 0.001
_TOO_OFTEN = 3
_LONGEST_PATIENCE = 64
_shared_costs = Costs()


@dataclass(frozen=True, slots=True)
class Choice:
    """The encoding of a column, what it is expected to need, and why it was taken."""

    encoding: Encoding
    bytes_per_value: float
    seconds_per_value: float
    reason: str


@dataclass(slots=True)
class _Column:
    """What is known of a column. After an alarm that changed nothing, `deaf` batches go by without another.

    `slow` counts the batches in a row that took much longer than expected.
    """

    choice: Choice
    seen: Statistics
    deaf: int = 0
    patience: int = 1
    slow: int = 0
    reached: dict[Encoding, float] = field(default_factory=dict)
    """By encoding, how many times the estimated bytes it came to on these data: a sample may flatter it."""


class Chooser:
    """`plan()` says how to encode the next batch, `observe()` learns from a batch that was encoded.

    `bandwidth` is what the disk takes, in bytes per second. `share` bounds the time spent on looking for change, as a
    part of the encoding time; trials after a batch that came out otherwise than expected come on top. A new choice must
    be better by `gain`.
    """

    def __init__(
        self,
        bandwidth: float,
        lossy: Iterable[Lossy] = (),
        *,
        share: float = 0.02,
        gain: float = 0.1,
        costs: Costs = _shared_costs,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._bandwidth = bandwidth
        self._bounds = {setting.column: setting.max_error for setting in lossy}
        self._share = share
        self._gain = gain
        self._costs = costs
        self._clock = clock
        self._allowance = 0.0
        self._turn = 0
        self._columns: dict[str, _Column] = {}

    def plan(self) -> dict[str, Encoding]:
        """For `encode_frame`. Columns not seen yet are left to its safe encoding."""
        return {name: column.choice.encoding for name, column in self._columns.items()}

    @property
    def choices(self) -> dict[str, Choice]:
        return {name: column.choice for name, column in self._columns.items()}

    def reasons(self) -> dict[str, str]:
        return {name: column.choice.reason for name, column in self._columns.items()}

    def set_bandwidth(self, bandwidth: float) -> None:
        """A new measurement of the disk. All choices are made again if it is far from the last."""
        if not 2 / 3 <= bandwidth / self._bandwidth <= 1.5:
            self._bandwidth = bandwidth
            self._columns.clear()

    def observe(self, batch: pl.DataFrame, encoded: Encoded | None = None) -> list[str]:
        """Learn from a batch and from what encoding it gave; the columns whose encoding changes with the next plan."""
        if batch.height < _FEWEST_ROWS or batch.width == 0:
            return []
        self._turn += 1
        if encoded is not None:
            self._allowance += self._share * sum(encoded.seconds.values())
        columns = batch.get_columns()
        first = self._turn % len(columns)  # so that each has its turn when the time is short
        changed = [series.name for series in columns[first:] + columns[:first] if self._observe(series, encoded)]
        # An old credit is no reason to look at every batch.
        self._allowance = min(self._allowance, 0.1)
        return changed

    def _observe(self, series: pl.Series, encoded: Encoded | None) -> bool:
        if not is_encodable(series.dtype):
            return False
        column = self._columns.get(series.name)
        if column is None:
            return self._review(series, None, None)
        if self._is_alarming(column, series.name, encoded):
            return self._review(series, column, encoded)
        # Without feedback, every look is due.
        if self._allowance <= 0 and encoded is not None:
            return False
        started = self._clock()
        seen = statistics_of(sample_of(series, _LOOK, self._turn))
        changed = have_moved(column.seen, seen) and self._review(series, column, encoded)
        self._allowance -= self._clock() - started
        return changed

    def _is_alarming(self, column: _Column, name: str, encoded: Encoded | None) -> bool:
        """The last batch did not come out as expected."""
        if encoded is None or name not in encoded.sizes:
            return False
        if column.deaf > 0:
            column.deaf -= 1
            return False
        reached = encoded.sizes[name] / encoded.rows
        expected = column.choice.bytes_per_value
        if encoded.used[name] != column.choice.encoding and name not in encoded.fallbacks:
            return False  # encoded under an earlier plan
        if name in encoded.fallbacks or not 0.6 * expected - 0.1 <= reached <= 1.25 * expected + 0.1:
            return True
        slow = encoded.seconds[name] > 2 * column.choice.seconds_per_value * encoded.rows + _SHORT
        column.slow = column.slow + 1 if slow else 0
        return column.slow >= _TOO_OFTEN

    def _review(self, series: pl.Series, column: _Column | None, encoded: Encoded | None) -> bool:
        seen = statistics_of(sample_of(series, _LOOK, self._turn))
        tried = candidates(series.dtype, seen, len(series), self._bounds.get(series.name))
        current = column.choice.encoding if column is not None else None
        if current is not None and current not in tried:
            tried.append(current)
        known = column.reached if column is not None and not have_moved(column.seen, seen) else {}
        ranked = self._try(tried, series, encoded, known)
        best = self._keep_or_change(ranked, current)
        reason = self._reason(best, ranked, current)
        choice = Choice(best.encoding, best.bytes_per_row, best.seconds / best.rows, reason)
        changed = best.encoding != current
        if column is None or changed:
            self._columns[series.name] = _Column(choice, seen, reached=known)
        else:
            column.choice, column.seen, column.slow, column.reached = choice, seen, 0, known
            column.deaf, column.patience = column.patience, min(2 * column.patience, _LONGEST_PATIENCE)
        return changed

    def _try(
        self, tried: list[Encoding], series: pl.Series, encoded: Encoded | None, known: dict[Encoding, float]
    ) -> list[Estimate]:
        """Estimates, best first. What would take longer than the best so far even if it left no bytes is not tried."""
        sample = sample_of(series, _SAMPLE, self._turn)
        found: list[Estimate] = []
        best = float("inf")
        for encoding in tried:
            if self._costs.least_seconds(encoding, series.dtype, len(series)) > best:
                continue
            estimate = self._costs.estimate(encoding, sample, series)
            if estimate is not None:
                actual = _as_reached(estimate, series.name, encoded)
                if actual is not estimate:
                    known[encoding] = actual.bytes / max(1.0, estimate.bytes)
                elif encoding in known:
                    actual = replace(estimate, bytes=estimate.bytes * known[encoding])
                found.append(actual)
                best = min(best, found[-1].total(self._bandwidth))
        # All that are as good as the best count as equal, and stay in their order, lightest first: what is lighter is
        # read faster too, and its time is surer.
        return sorted(found, key=lambda one: max(_EQUAL * best, one.total(self._bandwidth)))

    def _keep_or_change(self, ranked: list[Estimate], current: Encoding | None) -> Estimate:
        best = ranked[0]
        for estimate in ranked:
            if estimate.encoding == current:
                better = best.total(self._bandwidth) < (1 - self._gain) * estimate.total(self._bandwidth)
                return best if better else estimate
        return best

    def _reason(self, best: Estimate, ranked: list[Estimate], current: Encoding | None) -> str:
        others = [one for one in ranked if one is not best]
        text = f"{best} is cheapest at {self._bandwidth / 1e6:.0f} MB/s"
        if others and others[0].total(self._bandwidth) < best.total(self._bandwidth):
            text += f" within {_EQUAL - 1:.0%}"
        if best is not ranked[0]:
            text = f"{best} is kept, no other is better by {self._gain:.0%}"
        if others:
            slower = others[0].total(self._bandwidth) / max(1e-12, best.total(self._bandwidth))
            text += f"; next is {others[0]} at {slower:.2f} times the cost"
        return text if current in (None, best.encoding) else f"{text}; was {current}"


def _as_reached(estimate: Estimate, name: str, encoded: Encoded | None) -> Estimate:
    """What the encoder reached on this very batch is better than an estimate."""
    if encoded is None or encoded.used.get(name) != estimate.encoding or encoded.rows != estimate.rows:
        return estimate
    return replace(estimate, bytes=float(encoded.sizes[name]), seconds=encoded.seconds[name])
