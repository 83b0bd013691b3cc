"""A descriptor measured from what a pipeline did: its fragments are the PEs, p-streams and sources the edges.

Cost is CPU seconds per row and capacity CPU seconds per second. Of a fragment that reads from several others, what a
row of each costs and brings is estimated from epochs that read different amounts of them (`per_input.py`). All sources
of a fragment are one source of the descriptor; so is a p-stream that clients fill. Rates are binned into levels; the
rate of a level is the greatest in it, so that the controller, which keeps to rates that are at least the measured ones,
finds each where it was counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DescriptorError
from holdfast.laar.descriptor import Descriptor, DescriptorEdge, InputConfiguration
from holdfast.laar.epoch_journal import EpochWork, FragmentWork, read_journals
from holdfast.laar.host_strategy import Feed
from holdfast.laar.per_input import per_row
from holdfast.meta import MetaStore, StreamMeta, opened_meta

__all__ = ["MeasurementSettings", "default_measuring", "feeds_of", "measured_descriptor", "measured_from_store",
           "written_rows"]  # fmt: skip

_WINDOW_SECONDS = 1.0
_DIGITS = 6
_POINTS = 256
_OTHER_CPU = 0.4
"""CPU seconds per second that a host's Spark session takes beside the tasks of epochs, with an epoch per second and
fragment, where it was not measured: as in the experiment `laar-example`."""
_OTHER_CPU_SECONDS = 60.0
_LEAST_LEFT = 0.1
"""The part of a host that is planned with, whatever is measured."""
_APART = 1.25
"""Levels that differ by less than that factor are one."""
_LEVELS = {1: ("All",), 2: ("Low", "High"), 3: ("Low", "Medium", "High")}
_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasurementSettings:
    """What the journals do not say."""

    hosts: int = 2
    capacity: Fraction = Fraction(1)
    """CPU seconds per second of each host."""
    shared: bool = False
    """Whether what hosts use beside the tasks of epochs is part of the capacity, and has to be taken off."""
    replicas: int = 2
    ic_target: Fraction = Fraction(7, 10)
    bins: int = 2
    """Levels of each source's rate, at most, cut where rates differ."""
    rates: tuple[Fraction, ...] = ()
    """Levels that are given, in place of bins: rows per second, of each source."""
    window: float = _WINDOW_SECONDS
    """Seconds over which a rate is taken."""


def default_measuring() -> MeasurementSettings:
    """Two hosts like this machine, which they share with their Spark sessions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return MeasurementSettings(capacity=Fraction(cores), shared=True)


def measured_from_store(
    pipeline: str,
    store: Path,
    meta: str | None,
    settings: MeasurementSettings,
    fragments: Collection[str] | None = None,
) -> Descriptor:
    """The descriptor of a pipeline that has run in a store; of the fragments it has now, where these are known."""
    with opened_meta(store, meta) as known:
        works = read_journals(store, pipeline, fragments)
        return measured_descriptor(pipeline, works, written_rows(works, known), settings)


def written_rows(works: Sequence[FragmentWork], meta: MetaStore) -> dict[str, int]:
    """How many rows the p-streams of a pipeline have got."""
    streams = StreamMeta(meta)
    there = set(streams.streams())
    named = {stream for work in works for stream in (*work.reads, *work.writes)}
    return {stream: streams.state(stream).offset for stream in named & there}


def measured_descriptor(
    pipeline: str, works: Sequence[FragmentWork], written: Mapping[str, int], settings: MeasurementSettings
) -> Descriptor:
    """The descriptor of a pipeline. `written` is how many rows each p-stream has got, also those that clients fill."""
    works = [work for work in works if work.epochs]
    if not works:
        raise DescriptorError(
            f"there are no measurements of the epochs of '{pipeline}'",
            cure="run the pipeline on this store for a while, at the expected rates",
        )
    writers = {stream: work.fragment for work in works for stream in work.writes}
    traces = _traces(works, writers, written)
    sources = tuple(traces)
    return Descriptor(
        name=pipeline,
        sources=sources,
        pes=tuple(work.fragment for work in works),
        configs=_configs(traces, settings),
        edges=tuple(edge for work in works for edge in _edges(work, works, writers, written)),
        capacities=(_left(settings, works),) * settings.hosts,
        replicas=settings.replicas,
        placement=None,
        period=Fraction(1),
        ic_target=settings.ic_target,
    )


def _left(settings: MeasurementSettings, works: Sequence[FragmentWork]) -> Fraction:
    """What a host has for the tasks of epochs: the one that used most beside them in the last minute counts."""
    if not settings.shared:
        return settings.capacity
    until = max(work.epochs[-1].committed for work in works) - _OTHER_CPU_SECONDS
    seen = [
        epoch.other_cpu
        for work in works
        for epoch in work.epochs
        if epoch.other_cpu is not None and epoch.committed > until
    ]
    others = _number(max(seen, default=_OTHER_CPU))
    return max(settings.capacity - others, settings.capacity * _number(_LEAST_LEFT))


def feeds_of(works: Sequence[FragmentWork]) -> dict[str, Feed]:
    """Where the rate of each source is seen while the pipeline runs."""
    written = {stream for work in works for stream in work.writes}
    feeds: dict[str, Feed] = {}
    for work in works:
        if work.sources:
            feeds[_source_of(work)] = Feed(work.fragment)
        for stream in work.reads:
            if stream not in written:
                feeds.setdefault(stream, Feed(work.fragment, len(work.reads)))
    return feeds


def _source_of(work: FragmentWork) -> str:
    """All sources of a fragment as one; no fragment has the same name."""
    name = "+".join(work.sources)
    return f"source {name}" if name == work.fragment else name


def _edges(
    work: FragmentWork, works: Sequence[FragmentWork], writers: Mapping[str, str], written: Mapping[str, int]
) -> list[DescriptorEdge]:
    """Into one fragment. An edge carries all that the other fragment writes; where this one reads only some of its
    p-streams, selectivity and cost are of that part."""
    if not sum(epoch.read for epoch in work.epochs):
        raise DescriptorError(
            f"fragment '{work.fragment}' has read no rows", cure="run the pipeline until all of its fragments have"
        )
    parts: dict[str, float] = {_source_of(work): 1.0} if work.sources else {}
    by_name = {work.fragment: work for work in works}
    for stream in work.reads:
        writer = writers.get(stream)
        streams = [stream] if writer is None else by_name[writer].writes
        total = sum(written.get(stream, 0) for stream in streams)
        part = written.get(stream, 0) / total if total else 1 / len(streams)
        parts[writer or stream] = parts.get(writer or stream, 0.0) + part
    rows = np.zeros((len(work.epochs), len(parts)))
    places = {origin: at for at, origin in enumerate(parts)}
    for at, epoch in enumerate(work.epochs):
        if work.sources:
            rows[at, places[_source_of(work)]] += epoch.entered
        for stream, count in _streamed(work, epoch, written).items():
            rows[at, places[writers.get(stream, stream)]] += count
    selectivity = per_row(rows, np.array([epoch.streamed for epoch in work.epochs], dtype=np.float64))
    cost = per_row(rows, np.array([epoch.cpu for epoch in work.epochs]))
    return [DescriptorEdge(origin, work.fragment, _number(part * selectivity[at]), _number(part * cost[at]))
            for at, (origin, part) in enumerate(parts.items())]  # fmt: skip


def _streamed(work: FragmentWork, epoch: EpochWork, written: Mapping[str, int]) -> dict[str, float]:
    """Rows that an epoch read, by p-stream; where the journal does not tell them apart, by what each has got."""
    if epoch.streams is not None:
        return {stream: float(epoch.streams.get(stream, 0)) for stream in work.reads}
    total = sum(written.get(stream, 0) for stream in work.reads)
    rows = epoch.read - epoch.entered
    return {stream: rows * written.get(stream, 0) / total if total else rows / len(work.reads) for stream in work.reads}


def _traces(
    works: Sequence[FragmentWork], writers: Mapping[str, str], written: Mapping[str, int]
) -> dict[str, list[tuple[EpochWork, float]]]:
    """Rows that came from outside, by source: the epochs of a fragment that reads it."""
    traces: dict[str, list[tuple[EpochWork, float]]] = {}
    for work in works:
        pushed = [stream for stream in work.reads if stream not in writers]
        if work.sources:
            traces[_source_of(work)] = [(epoch, float(epoch.entered)) for epoch in work.epochs]
        for stream in pushed:
            # Several fragments may read it, each all of it.
            rows = [(epoch, _streamed(work, epoch, written)[stream]) for epoch in work.epochs]
            traces.setdefault(stream, rows)
    return traces


def _configs(
    traces: Mapping[str, Sequence[tuple[EpochWork, float]]], settings: MeasurementSettings
) -> tuple[InputConfiguration, ...]:
    """Combinations of levels that were seen, with the part of the time each was."""
    _check_together(traces)
    rates = _rates(list(traces.values()), settings.window)
    levels = [_levels(seen_rates, settings) for seen_rates in rates]
    seen = Counter(
        zip(*(_binned(seen_rates, level) for seen_rates, level in zip(rates, levels, strict=True)), strict=True)
    )
    total = sum(seen.values())
    greatest = tuple(len(level) - 1 for level in levels)
    seen.setdefault(greatest, 0)  # the controller needs one that is never too small
    configs = []
    for chosen in sorted(seen):
        name = "-".join(_LEVELS.get(len(levels[s]), ())[at] if len(levels[s]) in _LEVELS else f"{at + 1}"
                        for s, at in enumerate(chosen))  # fmt: skip
        found = tuple(_number(float(levels[s][at])) for s, at in enumerate(chosen))
        configs.append(InputConfiguration(name, Fraction(seen[chosen], total), found))
    return tuple(configs)


def _check_together(traces: Mapping[str, Sequence[tuple[EpochWork, float]]]) -> None:
    """Of sources that never ran at the same time no combination of rates was seen."""
    common: list[tuple[float, float]] | None = None
    for name, trace in traces.items():
        spans = _spans(trace)
        pairs = [(max(a, c), min(b, d)) for a, b in common for c, d in spans] if common is not None else spans
        common = [(low, high) for low, high in pairs if low < high] if len(traces) > 1 else pairs
        if not common:
            raise DescriptorError(
                f"source '{name}' has never run at the same time as the others: {', '.join(traces)}",
                cure="run all fragments of the pipeline together for a while",
            )


def _rates(traces: Sequence[Sequence[tuple[EpochWork, float]]], window: float) -> list[_Array]:
    """Rows per second of each source in windows of time in which all of them were running."""
    spans = [_spans(trace) for trace in traces]
    begin = max(span[0][0] for span in spans)
    end = min(span[-1][1] for span in spans)
    window = min(window, max(end - begin, 1e-3))
    edges = begin + window * np.arange(max(1, int((end - begin) / window + 1e-9)) + 1)
    whole = np.ones(len(edges) - 1, dtype=bool)
    for span in spans:
        whole &= np.any([(edges[:-1] >= low - 1e-9) & (edges[1:] <= high + 1e-9) for low, high in span], axis=0)
    found = []
    for trace in traces:
        per_second = np.diff(np.interp(edges, *_taken(trace))) / window
        found.append(per_second[whole] if whole.any() else per_second)
    return found


def _taken(trace: Sequence[tuple[EpochWork, float]]) -> tuple[_Array, _Array]:
    """Rows that were taken until some times. What the first epoch of a run took has come since it began."""
    times, rows, total, run = [trace[0][0].started], [0.0], 0.0, trace[0][0].run
    for epoch, count in trace:
        if epoch.run != run and epoch.started > times[-1]:
            times.append(epoch.started)
            rows.append(total)
        run, total = epoch.run, total + count
        times.append(epoch.committed)
        rows.append(total)
    # Clocks of two hosts may differ a little.
    return np.maximum.accumulate(times), np.array(rows, dtype=np.float64)


def _spans(trace: Sequence[tuple[EpochWork, float]]) -> list[tuple[float, float]]:
    """When somebody was there to read: the runs, from the start of their first epoch to their last commit. Those of
    hosts that take turns are one."""
    runs: dict[float, tuple[float, float]] = {}
    for epoch, _ in trace:
        low, high = runs.get(epoch.run, (epoch.started, epoch.committed))
        runs[epoch.run] = (min(low, epoch.started), max(high, epoch.committed))
    found: list[tuple[float, float]] = []
    for low, high in sorted(runs.values()):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _levels(rates: _Array, settings: MeasurementSettings) -> _Array:
    """The greatest rate of each level, rising. The last is at least the greatest of all, unless levels were given."""
    if settings.rates:
        return np.array(sorted({float(rate) for rate in settings.rates}))
    levels: list[float] = []
    for level in np.unique(np.round(_breaks(rates, settings.bins), _DIGITS)):
        if levels and level < _APART * levels[-1]:
            levels[-1] = float(level)  # what is as near as that is noise
        else:
            levels.append(float(level))
    return np.array(levels)


def _breaks(rates: _Array, bins: int) -> _Array:
    """The greatest rate of each of so many groups, cut where rates of a group differ least (in squares)."""
    points = np.sort(rates)
    if len(points) > _POINTS:
        points = np.quantile(points, np.linspace(0, 1, _POINTS))
    sums, squares = np.concatenate([[0.0], np.cumsum(points)]), np.concatenate([[0.0], np.cumsum(points**2)])
    count = len(points)

    def spread(first: NDArray[np.int64], last: int) -> _Array:
        """Of the points from each `first` to before `last`."""
        total = sums[last] - sums[first]
        return np.asarray(squares[last] - squares[first] - total**2 / np.maximum(last - first, 1))

    least = np.array([0.0, *(float(spread(np.array([0]), last)[0]) for last in range(1, count + 1))])
    cuts: list[list[int]] = [[] for _ in range(count + 1)]
    for groups in range(2, bins + 1):
        best, where = least.copy(), [list(cut) for cut in cuts]
        for last in range(groups, count + 1):
            first = np.arange(groups - 1, last)
            total = least[first] + spread(first, last)
            at = int(total.argmin())
            if total[at] < best[last]:
                best[last], where[last] = total[at], [*cuts[int(first[at])], int(first[at])]
        least, cuts = best, where
    ends = [*cuts[count], count]
    return np.array([points[end - 1] for end in ends])


def _binned(rates: _Array, levels: _Array) -> list[int]:
    """The first level that is no less than the rate; the last for what is beyond all."""
    at = np.searchsorted(levels, np.round(rates, _DIGITS), side="left")
    return [int(level) for level in np.minimum(at, len(levels) - 1)]


def _number(value: float) -> Fraction:
    """The decimal that is written to the file."""
    return Fraction(f"{value:.9g}")
