"""From samples to bars: how much of each thing 100,000 epochs add, and whether epochs become slower. Pure.

The first tenth of a run does not count: caches fill, Java compiles, and what is retained comes to its size. Growth is
from the second tenth to the last one, each by its median, so that what goes up and down does not look like a trend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from holdfast_lab.experiment.definition import Bar, at_most
from holdfast_lab.soak.soak_samples import Sample

__all__ = ["Trend", "soak_bars", "trends"]

_EPOCHS = 100_000
_SLOWER = 1.2
_MB = 1_000_000
_MOST = {
    "files": ("files on disk", 20),
    "bytes": ("bytes on disk", _MB),
    "rows": ("rows of the meta store", 20),
    "open files": ("open files", 5),
    "threads": ("threads", 5),
    "processes": ("processes", 1),
    "memory driver": ("bytes of memory, driver", 10 * _MB),
    "memory workers": ("bytes of memory, workers", 10 * _MB),
    "memory java": ("bytes of memory, Java", 10 * _MB),
}
"""By the beginning of a name: what it is, and the most that 100,000 epochs may add in all."""


@dataclass(frozen=True, slots=True)
class Trend:
    """What there was of something early and late in a run, and what 100,000 epochs add to it."""

    name: str
    early: float
    late: float
    growth: float


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Of everything that any sample has, in the order of names."""
    early, late = _tenths(samples)
    epochs = median(s.epoch for s in late) - median(s.epoch for s in early)
    found = []
    for name in sorted({name for one in samples for name in one.holds}):
        before, after = (median(s.holds.get(name, 0) for s in some) for some in (early, late))
        found.append(Trend(name, before, after, (after - before) * _EPOCHS / epochs))
    return found


def _tenths(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    tenth = max(1, len(samples) // 10)
    return samples[tenth : 2 * tenth], samples[-tenth:]


def soak_bars(samples: Sequence[Sample], wrong_rows: int) -> list[Bar]:
    found = trends(samples)
    bars = [at_most("rows lost or doubled", wrong_rows, 0)]
    for kind, (what, most) in _MOST.items():
        bars.append(at_most(f"{what}, more per 100,000 epochs", round(_sum(found, kind), 1), most))
    for what, ratio in (
        ("time", _slower([s.began for s in samples], [s.ended for s in samples], samples)),
        ("CPU", _slower([s.cpu for s in samples], [s.cpu for s in samples], samples)),
    ):
        bars.append(at_most(f"{what} per epoch, last tenth over the second", round(ratio, 3), _SLOWER))
    return bars


def _sum(found: Iterable[Trend], kind: str) -> float:
    """Things that go away in one place and come in another are the same."""
    return sum(trend.growth for trend in found if trend.name.startswith(kind))


def _slower(began: Sequence[float], ended: Sequence[float], samples: Sequence[Sample]) -> float:
    """What an epoch costs late over what it costs early. Looking is not counted: an epoch lasts from the end of one
    sample to the beginning of the next."""
    costs = [(began[i] - ended[i - 1]) / (samples[i].epoch - samples[i - 1].epoch) for i in range(1, len(samples))]
    tenth = max(1, len(costs) // 10)
    return sum(costs[-tenth:]) / sum(costs[tenth : 2 * tenth])
