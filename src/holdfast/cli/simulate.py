"""`holdfast simulate`: the protocol of replicas in a world of simulated faults, seed by seed."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import json_option
from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast.replica.seeds import Failure, Report

__all__ = ["simulate"]

_PIECE = 25
_MOST_FAILURES = 10
_EVERY_SECONDS = 5.0


@click.command(cls=HoldfastCommand)
@click.option("--seeds", type=click.IntRange(min=1), default=2_000, show_default=True, help="How many to run.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to run them in.  [default: one per core]")
@click.option(
    "--history", type=click.IntRange(min=0), metavar="SEED", help="Only tell all that happens with this seed."
)
@json_option
def simulate(seeds: int, first: int, jobs: int | None, history: int | None, as_json: bool) -> None:
    """Run the machines of the hosts with simulated clocks, network, store and disks, and check every step.

    A seed decides hosts, scheme, moves between schemes, delivery and what fails: kills, stopped processes, partitions,
    a store that does not answer, lost and doubled messages, a full disk, clocks that jump. The same seed does the same
    every time. It stops after ten violations; each is shown with its seed. Exit code 1 if there was any.
    """
    if history is not None:
        _tell(history, as_json)
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    report = _run(first, seeds, jobs or cores)
    click.echo(
        f"{counted(report.seeds, 'seed')} from {report.first} on in {report.seconds:.1f} s,"
        f" {report.per_minute:.0f} per minute: {counted(report.events, 'event')}, {counted(report.faults, 'fault')},"
        f" {counted(report.takeovers, 'takeover')}, {counted(report.epochs, 'epoch')}, {counted(report.gaps, 'gap')};"
        f" violations: {len(report.failures)}"
    )
    if report.seeds < seeds:
        left = counted(seeds - report.seeds, "seed")
        click.echo(f"stopped after {counted(len(report.failures), 'violation')}; not run: {left}")
    if as_json:
        click.echo(json.dumps(report.to_json()))
    if report.failures:
        click.get_current_context().exit(1)


def _run(first: int, seeds: int, jobs: int) -> Report:
    from holdfast.replica.seeds import together

    begun = time.perf_counter()
    pieces = [(start, min(_PIECE, first + seeds - start)) for start in range(first, first + seeds, _PIECE)]
    done: list[Report] = []
    shown = begun
    with _reports(pieces, min(jobs, len(pieces))) as reports:
        for report in reports:
            done.append(report)
            for failure in report.failures:
                click.echo(_told(failure))
            now = time.perf_counter()
            so_far = together(done, now - begun)
            if now - shown >= _EVERY_SECONDS:
                shown = now
                click.echo(f"{so_far.seeds} of {seeds} seeds, {so_far.per_minute:.0f} per minute", err=True)
            if len(so_far.failures) >= _MOST_FAILURES:
                break
    return together(done, time.perf_counter() - begun)


@contextmanager
def _reports(pieces: list[tuple[int, int]], jobs: int) -> Iterator[Iterator[Report]]:
    """The report of each piece as it is done, from so many processes; with one job, from this process."""
    if jobs == 1:
        yield map(_piece, pieces)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool.imap_unordered(_piece, pieces)


def _piece(piece: tuple[int, int]) -> Report:
    from holdfast.replica.seeds import run_seeds

    return run_seeds(*piece, most_failures=_MOST_FAILURES)


def _told(failure: Failure) -> str:
    return f"violation with {failure}\n  see it again: holdfast simulate --history {failure.seed}"


def _tell(seed: int, as_json: bool) -> None:
    from holdfast.replica.faults import scenario
    from holdfast.replica.seeds import replay

    lines, failure = replay(seed)
    if as_json:
        problem = None if failure is None else failure.problem
        click.echo(json.dumps({"seed": seed, "problem": problem, "history": lines}))
    else:
        made = scenario(seed)
        delivery = "exactly-once" if made.precise else "gap"
        click.echo(f"seed {seed}: hosts {', '.join(made.hosts)}; {made.scheme.value}; {delivery}")
        if made.odd is not None:
            click.echo(f"{made.odd[0]} computes something else from epoch {made.odd[1]} on")
        click.echo("\n".join(lines))
    if failure is not None:
        click.get_current_context().exit(1)
