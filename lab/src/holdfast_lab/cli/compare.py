"""`holdfast compare`: whether a change made anything slower."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from holdfast.cli.group import LongCommand
from holdfast.cli.shared_options import LocalPath, SecondsRange
from holdfast_lab.bench.speed_comparison import MEASUREMENTS, Checkout, Effort, compare_speed

__all__ = ["compare"]

_CHECKOUT = LocalPath(exists=True, file_okay=False)


@click.command(cls=LongCommand)
@click.option("--old", type=_CHECKOUT, required=True, metavar="DIR", help="Working tree of the old version.")
@click.option(
    "--new", type=_CHECKOUT, default=Path(), metavar="DIR",
    help="Working tree of the new version.  [default: the working directory]",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Measurements per checkout.")
@click.option(
    "--seconds", type=SecondsRange(min=0, min_open=True), default=8.0, show_default=True,
    help="How long a benchmark measures after its warm-up.",
)  # fmt: skip
@click.option("--keys", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Of keyed state.")
@click.option(
    "--faults", type=click.IntRange(min=1), default=5, show_default=True, help="Kills of the primary in each run."
)
@click.option("--only", multiple=True, metavar="NAME", help="Measure only this; repeatable.")
def compare(old: Path, new: Path, rounds: int, seconds: float, keys: int, faults: int, only: tuple[str, ...]) -> None:
    """Measure the speed of two checkouts in turns: YSB, CM1, LRB1, keyed, idle epoch, replica takeover.

    Each measurement runs in a separate process with the sources of one checkout; both use the Python and packages of
    this one. The last line is JSON. Its bars (targets) give the speed of the new checkout relative to the old one, by
    the median of the rounds; the minimum is 0.97. A missed bar is shown as failed and does not change the exit code.
    To check out an older commit: git worktree add DIR COMMIT.
    """

    unknown = [name for name in only if name not in MEASUREMENTS]
    if unknown:
        raise click.UsageError(f"--only: there is no '{unknown[0]}'; choose from {', '.join(MEASUREMENTS)}")
    checkouts = {"old": Checkout(old.resolve()), "new": Checkout(new.resolve())}
    for checkout in checkouts.values():
        checkout.check()
    ratios = compare_speed(
        {side: checkout.run for side, checkout in checkouts.items()},
        only or tuple(MEASUREMENTS), rounds, Effort(seconds, keys, faults), click.echo,
    )  # fmt: skip
    bars = [ratio.bar() for ratio in ratios]
    for bar in bars:
        click.echo(f"{bar.name}: {bar.value} times as fast{'' if bar.ok else ', FAILED'} (at least {bar.bar})")
    click.echo(json.dumps({"bars": [asdict(bar) for bar in bars], "measured": [ratio.to_json() for ratio in ratios]}))
