"""`holdfast simulate`: the shipped code in a world of simulated faults, seed by seed."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.group import LongCommand, current_task
from holdfast.cli.shared_options import json_option
from holdfast.plurals import counted
from holdfast_lab.experiment.definition import at_least, at_most

if TYPE_CHECKING:
    from holdfast_lab.experiment.definition import Bar
    from holdfast_lab.simulate.worlds import Failure, SeedsReport

__all__ = ["simulate"]

Given = TypeVar("Given")
Made = TypeVar("Made")

_PIECE = 20
_MOST_FAILURES = 10
_EVERY_SECONDS = 5.0
_LEAST_PER_MINUTE = 500
"""Of two cores."""
_SEEDS_TO_REACH_ALL = 1_000


@click.command(cls=LongCommand)
@click.option("--seeds", type=click.IntRange(min=1), default=1_000, show_default=True, help="Number of seeds to run.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: one per core]")
@click.option("--seed", type=click.IntRange(min=0), help="Run only this seed.")
@click.option("--trace", is_flag=True, help="With --seed: show every event.")
@click.option("--plant", metavar="NAME", help="Plant a bug, to check that it is found; 'list' shows them.")
@click.option(
    "--planted",
    "all_planted",
    is_flag=True,
    help="Plant all bugs, one after the other, and show which seeds find them.",
)
@click.option(
    "--renew",
    "known",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Check the seeds of this file, and search for replacements for those that no longer find their bug.",
)
@json_option
def simulate(
    seeds: int,
    first: int,
    jobs: int | None,
    seed: int | None,
    trace: bool,
    plant: str | None,
    all_planted: bool,
    known: Path | None,
    as_json: bool,
) -> None:
    """Run the shipped code with a simulated clock, network, store and disk, and check the results.

    A seed decides everything: the world (hosts that run a pipeline together, a process that runs it alone, or receivers
    with clients and a reader), the schedule, and the faults: kills, paused processes, partitions, a store that does not
    answer or whose answers are lost, power failures, full and slow disks, slow networks, clock changes, changes of
    scheme and parallelism. The same seed always does the same. The run stops after ten violations, with a planted bug
    after the first; each is shown with its seed. Exit code 1 if there was any. At the end it lists the roles,
    instructions, commits, schemes, policies and faults that the seeds have not reached. With --json the last line is
    JSON, with the bars (targets).
    """
    from holdfast_lab.simulate.planted import PLANTED

    if plant == "list":
        click.echo("\n".join(PLANTED))
        return
    if plant is not None and plant not in PLANTED:
        raise click.UsageError(f"there is no bug called '{plant}'; `holdfast simulate --plant list` names them")
    if trace and seed is None:
        raise click.UsageError("--trace needs --seed")
    if seed is not None:
        _show(seed, trace, plant, as_json)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = jobs or cores
    if all_planted:
        _show_planted(first, seeds, jobs, as_json)
        return
    if known is not None:
        _renew(known, seeds, jobs)
        return
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
    places = len(report.reached)
    click.echo(f"reached: {places - len(report.missed)} of {places} places")
    for place in report.missed if plant is None else ():
        click.echo(f"  not reached: {place}")
    if as_json:
        bars = [asdict(bar) for bar in _bars(report, min(jobs, cores), plant)]
        click.echo(json.dumps({"bars": bars, **report.to_json(), "jobs": jobs, "plant": plant}))
    if report.failures:
        click.get_current_context().exit(1)


def _bars(report: SeedsReport, cores: int, plant: str | None) -> list[Bar]:
    """The bars for so many seeds: a planted bug must be found, and without one there is nothing to find."""

    if plant is not None:
        return [at_least("violations by the planted bug", len(report.failures), 1)]
    bars = [
        at_most("violations", len(report.failures), 0),
        at_least("seeds per minute on two cores", report.per_minute * 2 / cores, _LEAST_PER_MINUTE),
    ]
    if report.seeds >= _SEEDS_TO_REACH_ALL:
        bars.append(at_most("places that were not reached", len(report.missed), 0))
    return bars


def _most_failures(plant: str | None) -> int:
    return _MOST_FAILURES if plant is None else 1


def _run(first: int, seeds: int, jobs: int, plant: str | None) -> SeedsReport:
    from holdfast_lab.simulate.worlds import together

    begun = time.perf_counter()
    pieces = [(start, min(_PIECE, first + seeds - start)) for start in range(first, first + seeds, _PIECE)]
    done: list[SeedsReport] = []
    shown = begun
    with _reports(pieces, min(jobs, len(pieces)), plant) as reports:
        for report in reports:
            done.append(report)
            for failure in report.failures:
                click.echo(_shown(failure, plant))
            now = time.perf_counter()
            so_far = together(done, now - begun)
            current_task().at(so_far.seeds, f"{so_far.per_minute:.0f} seeds per minute", seeds)
            if now - shown >= _EVERY_SECONDS:
                shown = now
                click.echo(f"{so_far.seeds} of {seeds} seeds, {so_far.per_minute:.0f} per minute", err=True)
            if len(so_far.failures) >= _most_failures(plant):
                break
    return together(done, time.perf_counter() - begun)


@contextmanager
def _reports(pieces: list[tuple[int, int]], jobs: int, plant: str | None) -> Iterator[Iterator[SeedsReport]]:
    """The report of each piece as it is done."""
    with _mapped(partial(_piece, plant), pieces, jobs) as reports:
        yield reports


@contextmanager
def _mapped(work: Callable[[Given], Made], items: list[Given], jobs: int) -> Iterator[Iterator[Made]]:
    """The result of each item as it is done, by so many processes; with one job, by this process."""
    if jobs == 1:
        yield map(work, items)
        return
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # of the new processes: each has a core, and frames of a few rows
    context = multiprocessing.get_context("spawn")
    cores: Any = context.SimpleQueue()
    for number in range(jobs):
        cores.put(number)
    with context.Pool(jobs, _stay_on_a_core, (cores,)) as pool:
        yield pool.imap_unordered(work, items)


def _stay_on_a_core(cores: Any) -> None:
    """Only one thread of a simulation runs at a time: on two cores, each hand-over would wake the other one up."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {mine[cores.get() % len(mine)]})


def _piece(plant: str | None, piece: tuple[int, int]) -> SeedsReport:
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


def _show_planted(first: int, seeds: int, jobs: int, as_json: bool) -> None:
    """A line for each planted bug: the first seed that finds it, and how."""
    from holdfast_lab.simulate.planted import PLANTED

    found: dict[str, Failure | None] = {}
    work = partial(_find, first, seeds)
    with _mapped(work, list(PLANTED), jobs) as finds:
        for name, failure in finds:
            found[name] = failure
            how = f"not found by {counted(seeds, 'seed')}" if failure is None else str(failure)
            click.echo(f"{name}\n  {how}")
    caught = sum(failure is not None for failure in found.values())
    click.echo(f"found: {caught} of {len(PLANTED)} planted bugs, each within {counted(seeds, 'seed')}")
    if as_json:
        bar = at_least("planted bugs that were found", caught, len(PLANTED))
        findings = {name: None if failure is None else asdict(failure) for name, failure in found.items()}
        click.echo(json.dumps({"bars": [asdict(bar)], "planted": findings, "first": first, "seeds": seeds}))
    if caught < len(PLANTED):
        click.get_current_context().exit(1)


def _find(first: int, seeds: int, name: str) -> tuple[str, Failure | None]:
    from holdfast_lab.simulate.worlds import first_to_find

    gc.collect()
    gc.freeze()
    return name, first_to_find(name, first, seeds)


def _renew(path: Path, seeds: int, jobs: int) -> None:
    """Keep the seeds of a file that do what they are known for, and find others for the rest, among so many."""
    from holdfast_lab.simulate.known_seeds import KnownSeeds, cover, finds, reached_by
    from holdfast_lab.simulate.planted import PLANTED

    known = KnownSeeds.read(path)
    before = dict(known.finding)
    # Those that have to be searched for take long, and come at the end: what is done by then is not lost.
    names = sorted(PLANTED, key=lambda name: name not in before)
    with _mapped(partial(finds, before, seeds), names, jobs) as found:
        for name, seed in found:
            how = f"not found by {counted(seeds, 'seed')}" if seed is None else f"seed {seed}"
            known.finding.pop(name, None)
            if seed is not None:
                known.finding[name] = seed
                known.write(path)
            click.echo(f"{name}: {how}{' as before' if seed is not None and before.get(name) == seed else ''}")
    reached = []
    tried = dict.fromkeys((*known.reaching, *range(seeds)))  # in this order
    with _mapped(reached_by, list(tried), jobs) as reports:
        for number, report in enumerate(reports, 1):
            reached.append(report)
            if number >= len(known.reaching) and not cover(reached)[1]:
                break
    known.reaching, missed = cover(reached)
    known.write(path)
    click.echo(f"{len(known.reaching)} seeds reach all" + "".join(f"\n  but {place}" for place in sorted(missed)))
    if missed or known.finding.keys() != PLANTED.keys():
        click.get_current_context().exit(1)


def _shown(failure: Failure, plant: str | None) -> str:
    again = f" --plant '{plant}'" if plant is not None else ""
    return f"violation with {failure}\n  to reproduce: holdfast simulate --seed {failure.seed} --trace{again}"


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
