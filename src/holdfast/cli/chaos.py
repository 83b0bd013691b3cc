"""`holdfast chaos`: kill a running query again and again, and see that nothing is lost and nothing doubled."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import json_option

if TYPE_CHECKING:
    from holdfast.chaos.campaign import CampaignResult
    from holdfast.chaos.faults import Kind

__all__ = ["chaos"]


def _kinds(ctx: click.Context, _: click.Parameter, value: str | None) -> list[Any] | None:
    from holdfast.chaos.faults import KINDS

    if value is None:
        return None
    kinds = [each.strip() for each in value.split(",") if each.strip()]
    unknown = [each for each in kinds if each not in KINDS]
    if unknown or not kinds:
        raise click.BadParameter(f"{value!r}: choose from {', '.join(KINDS)}, separated by commas")
    return kinds


@click.command(cls=HoldfastCommand)
@click.argument("query")
@click.option("--faults", type=click.IntRange(min=1), default=10, show_default=True, help="How many faults to make.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same plan of faults.")
@click.option(
    "--kinds", callback=_kinds, metavar="K,K",
    help="driver, worker, executor, host, scale.  [default: driver and worker, and executor if the master has them]",
)  # fmt: skip
@click.option("--checkpoint", default="auto", show_default=True, metavar="POLICY",
              help="delta, interval(SECONDS s), none or auto.")  # fmt: skip
@click.option("--persist", is_flag=True, help="Let the events go through a p-stream, whose writer and reader both die.")
@click.option("--master", metavar="URL", help="Spark master; executors need one like local-cluster[2,1,1024].")
@json_option
def chaos(
    query: str,
    faults: int,
    seed: int,
    kinds: list[Kind] | None,
    persist: bool,
    master: str | None,
    checkpoint: str,
    as_json: bool,
) -> None:
    """Run QUERY under faults until all are made, and compare its output with that of a run without faults.

    A fault is a kill -9: of the driver with its Java process and all workers, after which it is started again on the
    same store; of one Python worker; or of an executor. The loss of a host takes the volatile tier of the state, too.
    `scale` is no fault, but must not be noticed either: an operator gets another number of partitions.

    With --persist the events go through a p-stream, and its two
    sides recover on their own; the run without faults has no p-stream. Only processes that this command started are
    killed. Exit code 1 if any row was lost or doubled.
    """
    from holdfast.chaos.campaign import Campaign
    from holdfast.graph.policies import as_policy
    from holdfast.workloads.queries import query as named

    clustered = (master or "").startswith("local-cluster")
    if kinds is None:
        kinds = ["driver", "worker", "executor"] if clustered else ["driver", "worker"]
    if "executor" in kinds and not clustered:
        raise click.UsageError("executors of its own to kill: give --master 'local-cluster[2,1,1024]'")
    named(query)
    as_policy(checkpoint)
    with TemporaryDirectory(prefix="holdfast-chaos-", ignore_cleanup_errors=True) as directory:
        campaign = Campaign(
            query, faults, seed, kinds, Path(directory), master, click.echo, persist=persist, checkpoint=checkpoint
        )
        result = campaign.run()
    _show(result)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    if not result.equal:
        raise SystemExit(1)


def _show(result: CampaignResult) -> None:
    from holdfast.ui.figures import duration

    said = result.to_json()

    def times(found: dict[str, Any]) -> str:
        return ", ".join(f"{name} {duration(found[name] / 1_000)}" for name in ("p50", "p95"))

    click.echo(
        f"{said['faults']} faults in {said['rounds']} runs of {said['output_rows']:,} rows out, seed {said['seed']}"
    )
    click.echo(
        f"rows lost {said['lost']}, duplicated {said['duplicated']}: " + ("equal" if said["equal"] else "NOT EQUAL")
    )
    click.echo(f"recovery {times(said['recovery_ms'])}")
    for kind, found in said["by_kind"].items():
        click.echo(f"  {kind}: {found['faults']} faults, {times(found)}")
