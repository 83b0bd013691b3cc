"""`holdfast laar`: find and check activation strategies for replicas, and generate applications for them."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import LocalPath, SecondsRange, json_option, meta_option, store_option
from holdfast.errors import DescriptorError

if TYPE_CHECKING:
    from holdfast.laar.descriptor import Descriptor
    from holdfast.laar.solution import Solution

__all__ = ["laar"]

_FAILURES = click.Choice(["pessimistic", "host-crash"])
_FILE = LocalPath(dir_okay=False)


def _share(value: str) -> Fraction:
    """A number from 0 to 1, as a decimal or as a fraction."""
    share = _amount(value)
    if share > 1:
        raise click.BadParameter(f"{value} is more than 1")
    return share


def _amount(value: str) -> Fraction:
    """A number of 0 or more, as it was written."""
    try:
        amount = Fraction(value)
    except (ValueError, ZeroDivisionError):
        raise click.BadParameter(f"'{value}' is not a number or a fraction such as 2/3") from None
    if amount < 0:
        raise click.BadParameter(f"{value} is negative")
    return amount


def _capacity(value: str) -> Fraction:
    """More than 0: a host without any cannot run anything."""
    amount = _amount(value)
    if not amount:
        raise click.BadParameter(f"{value} is not more than 0")
    return amount


@click.group()
def laar() -> None:
    """Load-adaptive active replication: which replicas run at which input rates.

    Given a descriptor of an application, its input rates and its hosts, LAAR finds the cheapest activation strategy
    that keeps internal completeness: the share of all tuples that is still processed when replicas fail.
    """


@laar.command(cls=HoldfastCommand)
@click.argument("descriptor", type=_FILE)
@click.option(
    "--time-limit", type=SecondsRange(min=0, min_open=True), default=10.0, show_default=True, metavar="DURATION",
    help="Return the best strategy so far after this time.",
)  # fmt: skip
@click.option(
    "--search", type=click.Choice(["milp", "ft"]), default="milp", show_default=True,
    help="ft is the paper's depth-first search, kept for comparison.",
)  # fmt: skip
@click.option("--ic", type=_share, metavar="TARGET", help="Override the descriptor's target.")
@click.option("--failures", type=_FAILURES, default="pessimistic", show_default=True, help="What may fail.")
@click.option(
    "--penalty", type=_amount, metavar="COST",
    help="Allow completeness below the target, at this cost per unit.",
)  # fmt: skip
@click.option("--place", is_flag=True, help="Find the placement, too, and ignore the descriptor's.")
@json_option
def solve(
    descriptor: Path, time_limit: float, search: str, ic: Fraction | None, failures: str, penalty: Fraction | None,
    place: bool, as_json: bool,
) -> None:  # fmt: skip
    """Find the cheapest activation strategy for DESCRIPTOR.

    With --json the last line is JSON; saved to a file, it is a strategy for `holdfast laar check`. The exit code is 0
    even if no strategy exists.
    """

    from holdfast.laar.descriptor import load_descriptor
    from holdfast.laar.ft_search import ft_search
    from holdfast.laar.model import FailureModel, Model
    from holdfast.laar.optimiser import solve as optimise

    said = load_descriptor(descriptor)
    if ic is not None:
        said = dataclasses.replace(said, ic_target=ic)
    if search == "ft":
        if failures != "pessimistic" or penalty is not None or place:
            raise click.UsageError("--search ft does not support --failures, --penalty or --place")
        if said.placement is None:
            raise click.UsageError("--search ft needs a descriptor with a placement")
        solution, stats = ft_search(Model(said), time_limit)
        pruned = ", ".join(f"{name} {count:,}" for name, count in stats.pruned.items())
        click.echo(f"nodes       {stats.nodes:,}; values pruned: {pruned}")
    else:
        solution = optimise(said, time_limit, failures=FailureModel(failures), penalty=penalty, place=place)
    _show(solution, said)
    if as_json:
        click.echo(solution.encode(said))


def _show(solution: Solution, said: Descriptor) -> None:
    click.echo(f"status      {solution.status} after {solution.seconds:.3f} s")
    if solution.bound is not None:
        click.echo(f"bound       {solution.bound:.10g}")
    if solution.strategy is None or solution.cost is None or solution.ic is None:
        return
    click.echo(f"cost        {float(solution.cost):.10g}")
    click.echo(f"IC          {float(solution.ic):.10g} (target {float(said.ic_target):.10g})")
    if solution.penalty:
        click.echo(f"penalty     {float(solution.penalty):.10g}")
    for config, active in zip(said.configs, solution.strategy.active, strict=True):
        full = sum(all(row) for row in active)
        click.echo(f"{config.name:<11} {full} of {len(said.pes)} PEs fully replicated")


@laar.command(cls=HoldfastCommand)
@click.option("--seed", type=int, required=True, help="The same seed and sizes give the same application.")
@click.option("--hosts", type=click.IntRange(min=1), required=True)
@click.option("--pes-per-host", type=click.IntRange(min=1), required=True)
@click.option("--ic", type=_share, required=True, metavar="TARGET", help="Internal completeness to keep.")
@click.option("--sources", type=click.IntRange(min=1, max=8), default=1, show_default=True)
@click.option("--rates", type=click.IntRange(min=2, max=16), default=2, show_default=True, help="Rates of each source.")
@click.option(
    "--replicas", type=click.IntRange(min=1, max=8), default=2, show_default=True, help="Replicas of each PE."
)
@click.option("-o", "--output", type=_FILE, metavar="FILE", help="Output file.  [default: standard output]")
def generate(
    seed: int, hosts: int, pes_per_host: int, ic: Fraction, sources: int, rates: int, replicas: int,
    output: Path | None,
) -> None:  # fmt: skip
    """Generate the descriptor of a synthetic application, as in the paper's evaluation."""
    from holdfast.laar.application_generator import Sizes
    from holdfast.laar.application_generator import generate as generated

    if rates**sources > 4096:
        raise click.UsageError(
            f"{rates} rates of {sources} sources make {rates**sources:,} configurations; the maximum is 4,096"
        )
    _write(generated(seed, Sizes(hosts, pes_per_host, sources, rates, replicas), ic), output)


def _write(descriptor: Descriptor, output: Path | None) -> None:

    said = json.dumps(json.loads(descriptor.encode()), indent=1)
    if output is None:
        click.echo(said)
        return
    try:
        output.write_text(said + "\n", encoding="utf-8")
    except OSError as error:
        raise DescriptorError(f"cannot write {output}: {error}", cure="give a file that can be written") from None


@laar.command(cls=HoldfastCommand)
@click.argument("pipeline")
@store_option
@meta_option
@click.option("--hosts", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--capacity", type=_capacity, metavar="CPUS",
    help="CPU seconds per second of each host for tasks.  [default: this machine's, less Spark's measured use]",
)  # fmt: skip
@click.option(
    "--replicas", type=click.IntRange(min=1, max=8), default=2, show_default=True, help="Replicas of each fragment."
)
@click.option(
    "--ic", type=_share, default="0.7", show_default=True, metavar="TARGET", help="Internal completeness to keep."
)
@click.option("--bins", type=click.IntRange(min=1, max=16), default=2, show_default=True,
              help="Levels of each source's rate, cut where rates differ most.")  # fmt: skip
@click.option("--rates", metavar="LOW,HIGH", help="Levels in rows per second, instead of bins.")
@click.option(
    "--window", type=SecondsRange(min=0, min_open=True), default=1.0, show_default=True, metavar="DURATION",
    help="Time over which a rate is measured.",
)  # fmt: skip
@click.option("-o", "--output", type=_FILE, metavar="FILE", help="Output file.  [default: standard output]")
def measure(
    pipeline: str, store: Path, meta: str | None, hosts: int, capacity: Fraction | None, replicas: int, ic: Fraction,
    bins: int, rates: str | None, window: float, output: Path | None,
) -> None:  # fmt: skip
    """Write the descriptor of PIPELINE from measurements of its runs in the store.

    Fragments are the PEs, p-streams and sources the edges. Selectivity, CPU time per row and rates are measured from
    past epochs; hosts and their capacity are those you give.
    """

    from holdfast.laar.measured_descriptor import MeasurementSettings, default_measuring, measured_from_store

    levels = tuple(_amount(level) for level in rates.split(",")) if rates else ()
    known = default_measuring() if capacity is None else MeasurementSettings(capacity=capacity)
    settings = dataclasses.replace(
        known, hosts=hosts, replicas=replicas, ic_target=ic, bins=bins, rates=levels, window=window
    )
    _write(measured_from_store(pipeline, store, meta, settings), output)


@laar.command(cls=HoldfastCommand)
@click.argument("descriptor", type=_FILE)
@click.argument("strategy", type=_FILE)
@click.option("--failures", type=_FAILURES, default="pessimistic", show_default=True, help="What may fail.")
@json_option
@click.pass_context
def check(ctx: click.Context, descriptor: Path, strategy: Path, failures: str, as_json: bool) -> None:
    """Verify a STRATEGY for DESCRIPTOR in exact arithmetic. The exit code is 1 if it is not valid."""
    from holdfast.laar.descriptor import load_descriptor
    from holdfast.laar.model import FailureModel, Model
    from holdfast.laar.strategy import load_strategy

    said = load_descriptor(descriptor)
    measured = Model(said).evaluate(load_strategy(strategy, said), FailureModel(failures))
    click.echo(f"cost        {float(measured.cost):.10g}")
    click.echo(f"IC          {float(measured.ic):.10g} (target {float(said.ic_target):.10g})")
    for problem in measured.problems:
        click.echo(f"violated    {problem}")
    click.echo("valid" if measured.valid else "not valid")
    if as_json:
        figures = {
            "valid": measured.valid, "cost": float(measured.cost), "ic": float(measured.ic),
            "problems": list(measured.problems),
        }  # fmt: skip
        click.echo(json.dumps(figures))
    if not measured.valid:
        ctx.exit(1)
