"""`holdfast simulate`: the shipped code in a world of simulated faults, seed by seed."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import json_option
from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast_lab.experiment.definition import Bar
    from holdfast_lab.simulate.worlds import Failure, Report

__all__ = ["simulate"]

_PIECE = 20
_MOST_FAILURES = 10
_EVERY_SECONDS = 5.0
_LEAST_PER_MINUTE = 500
"""Of two cores."""


@click.command(cls=HoldfastCommand)
@click.option("--seeds", type=click.IntRange(min=1), default=1_000, show_default=True, help="How many to run.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to run them in.  [default: one per core]")
@click.option("--seed", type=click.IntRange(min=0), help="Run only this seed.")
@click.option("--trace", is_flag=True, help="With --seed: show all that happens.")
@click.option("--plant", metavar="NAME", help="Plant a bug, to see that it is found; 'list' names them.")
@json_option
def simulate(
    seeds: int, first: int, jobs: int | None, seed: int | None, trace: bool, plant: str | None, as_json: bool
) -> None:
    """Run the shipped code with a simulated clock, network, store and disk, and judge what comes of it.

    A seed decides everything: which world it is (hosts that run a pipeline together, or receivers with clients and a
    reader), what runs when, and what fails: kills, stopped processes, partitions, a store that does not answer or whose
    answers are lost, power losses, full and slow disks, schemes that are changed. The same seed does the same every
    time. It stops after ten violations, with a planted bug after the first; each is shown with its seed. Exit code 1 if
    there was any. With --json the last line is JSON, with the bars that were to be reached.
    """
    from holdfast_lab.simulate.planted import PLANTED

    if plant == "list":
        click.echo("\n".join(PLANTED))
        return
    if plant is not None and plant not in PLANTED:
        raise click.UsageError(f"there is no bug called '{plant}'; `holdfast simulate --plant list` names them")
    if trace and seed is None:
        raise click.UsageError("--trace goes with --seed")
    if seed is not None:
        _show(seed, trace, plant, as_json)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = jobs or cores
    report = _run(first, seeds, jobs, plant)
    click.echo(
        f"{counted(report.seeds, 'seed')} from {report.first} on in {report.seconds:.1f} s,"
        f" {report.per_minute:.0f} per minute: {counted(report.events, 'event')}, {counted(report.faults, 'fault')},"
        f" {counted(report.transactions, 'transaction')}, {report.doubts} of them without an answer;"
        f" violations: {len(report.failures)}"
    )
    if report.seeds < seeds:
        left = counted(seeds - report.seeds, "seed")
        click.echo(f"stopped after {counted(len(report.failures), 'violation')}; not run: {left}")
    if as_json:
        bars = [asdict(bar) for bar in _bars(report, min(jobs, cores), plant)]
        click.echo(json.dumps({"bars": bars, **report.to_json(), "jobs": jobs, "plant": plant}))
    if report.failures:
        click.get_current_context().exit(1)


def _bars(report: Report, cores: int, plant: str | None) -> list[Bar]:
    """What is asked of so many seeds: a planted bug is to be found, and without one there is nothing to find."""
    from holdfast_lab.experiment.definition import at_least, at_most

    if plant is not None:
        return [at_least("violations by the planted bug", len(report.failures), 1)]
    return [
        at_most("violations", len(report.failures), 0),
        at_least("seeds per minute on two cores", report.per_minute * 2 / cores, _LEAST_PER_MINUTE),
    ]


def _most_failures(plant: str | None) -> int:
    return _MOST_FAILURES if plant is None else 1


def _run(first: int, seeds: int, jobs: int, plant: str | None) -> Report:
    from holdfast_lab.simulate.worlds import together

    begun = time.perf_counter()
    pieces = [(start, min(_PIECE, first + seeds - start)) for start in range(first, first + seeds, _PIECE)]
    done: list[Report] = []
    shown = begun
    with _reports(pieces, min(jobs, len(pieces)), plant) as reports:
        for report in reports:
            done.append(report)
            for failure in report.failures:
                click.echo(_shown(failure, plant))
            now = time.perf_counter()
            so_far = together(done, now - begun)
            if now - shown >= _EVERY_SECONDS:
                shown = now
                click.echo(f"{so_far.seeds} of {seeds} seeds, {so_far.per_minute:.0f} per minute", err=True)
            if len(so_far.failures) >= _most_failures(plant):
                break
    return together(done, time.perf_counter() - begun)


@contextmanager
def _reports(pieces: list[tuple[int, int]], jobs: int, plant: str | None) -> Iterator[Iterator[Report]]:
    """The report of each piece as it is done, from so many processes; with one job, from this process."""
    work = partial(_piece, plant)
    if jobs == 1:
        yield map(work, pieces)
        return
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # of the new processes: each has a core, and frames of a few rows
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap_unordered(work, pieces)


def _piece(plant: str | None, piece: tuple[int, int]) -> Report:
    from holdfast_lab.simulate.worlds import run_seeds

    gc.collect()
    gc.freeze()  # what is there now stays: looking through it for garbage would take as long as many a seed
    with _planted(plant):
        return run_seeds(*piece, most_failures=_most_failures(plant))


@contextmanager
def _planted(plant: str | None) -> Iterator[None]:
    from holdfast_lab.simulate.planted import planted

    with planted(plant) if plant is not None else contextlib.nullcontext():
        yield


def _shown(failure: Failure, plant: str | None) -> str:
    again = f" --plant '{plant}'" if plant is not None else ""
    return f"violation with {failure}\n  see it again: holdfast simulate --seed {failure.seed} --trace{again}"


def _show(seed: int, trace: bool, plant: str | None, as_json: bool) -> None:
    from holdfast_lab.simulate.worlds import replay, world_of

    with _planted(plant):
        lines, failure = replay(seed)
    problem = None if failure is None else failure.problem
    if as_json:
        world = world_of(seed).__name__
        click.echo(json.dumps({"seed": seed, "world": world, "problem": problem, "trace": lines if trace else None}))
    else:
        if trace:
            click.echo("\n".join(lines))
        click.echo(f"seed {seed}: {problem or 'no violation'}")
    if failure is not None:
        click.get_current_context().exit(1)
