"""`holdfast chaos`: kill a running query again and again, and check that nothing is lost or duplicated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import LongCommand
from holdfast.cli.shared_options import SecondsRange, json_option
from holdfast.plurals import counted
from holdfast.store import volatile_parent
from holdfast_lab.chaos.fault_plan import KINDS, OF_CREWS

if TYPE_CHECKING:
    from holdfast.plan.executor_choice import ExecutorName
    from holdfast_lab.chaos.campaign import CampaignResult

__all__ = ["chaos"]

_SOURCES = ("replay", "files", "kafka", "s3", "delta", "iceberg", "postgresql", "sqlite", "duckdb")
_SINKS = ("parquet", "kafka", "s3", "delta", "iceberg", "postgresql", "sqlite", "duckdb")
"""As in `campaign_ends.py`, which is slow to import."""


def _split(ctx: click.Context, _: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else [word.strip() for word in value.split(",") if word.strip()]


def _checked(kinds: list[str] | None, known: Sequence[str], default: list[Any]) -> list[Any]:
    unknown = [kind for kind in kinds or () if kind not in known]
    if unknown or kinds == []:
        raise click.UsageError(f"--kinds: choose from {', '.join(known)}, separated by commas")
    return default if kinds is None else kinds


@click.command(cls=LongCommand)
@click.argument("query")
@click.option("--faults", type=click.IntRange(min=1), default=10, show_default=True, help="How many faults to inject.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same plan of faults.")
@click.option(
    "--kinds", callback=_split, metavar="K,K",
    help="driver, java, worker, workers, stop, memory, cut, unreachable, executor, host, scale, broker.  [default: "
    "driver, java, worker, workers, stop, memory, with a crew cut and unreachable, and executor if there are some]  "
    "With --hosts: primary, secondary, both, java, worker, supervisor, stop, disk, scale, turn, and with PostgreSQL "
    "database and partition.  [default: all; turn only if the scheme is mixed]",
)  # fmt: skip
@click.option("--hosts", type=click.IntRange(min=2), metavar="N",
              help="Run on this many hosts, and inject faults into them.")  # fmt: skip
@click.option("--scheme", metavar="SCHEME",
              help="With --hosts: the replication scheme, or 'mixed' for all of them.  [default: mixed]")  # fmt: skip
@click.option("--meta", type=click.Choice(["sqlite", "postgresql"]), default="sqlite", show_default=True,
              help="With --hosts: the kind of meta store.")  # fmt: skip
@click.option("--detection", type=SecondsRange(min=0.5), default=2.0, show_default=True, metavar="DURATION",
              help="With --hosts: a host that is silent for this long counts as dead.")  # fmt: skip
@click.option("--checkpoint", default="auto", show_default=True, metavar="POLICY",
              help="delta, interval(SECONDS s), none or auto.")  # fmt: skip
@click.option("--executor", type=click.Choice(["crew", "jobs"]),
              help="How epochs run.  [default: a crew if possible]")  # fmt: skip
@click.option(
    "--persist", is_flag=True, help="Send the events through a p-stream; faults hit its writer and its reader."
)
@click.option("--source", type=click.Choice(_SOURCES), default="replay", show_default=True,
              help="The connector that rows come from.")  # fmt: skip
@click.option("--sink", type=click.Choice(_SINKS), default="parquet", show_default=True,
              help="The connector that rows go to.")  # fmt: skip
@click.option("--kafka", is_flag=True, help="Short for --source kafka --sink kafka.")
@click.option("--master", metavar="URL", help="Spark master; executors need one like local-cluster[2,1,1024].")
@json_option
def chaos(
    query: str,
    faults: int,
    seed: int,
    kinds: list[str] | None,
    hosts: int | None,
    scheme: str | None,
    meta: str,
    detection: float,
    persist: bool,
    source: str,
    sink: str,
    kafka: bool,
    master: str | None,
    checkpoint: str,
    executor: ExecutorName | None,
    as_json: bool,
) -> None:
    """Run QUERY under faults, and compare its output with that of a run without faults.

    A fault is a kill -9: of the driver with its Java process and all workers, or of Java alone, after which the driver
    is restarted on the same store; of one Python worker, or of all; or of an executor. `stop` pauses a worker forever,
    `memory` denies it more memory. `cut` breaks a connection between two workers of a crew, `unreachable` drops all
    packets from the other workers to one of them. The loss of a host also takes the volatile tier of the state. `scale`
    is not a fault, but must not change the output either: an operator gets another number of partitions.

    With --persist the events go through a p-stream, and its two sides recover independently; the run without faults has
    no p-stream. With --source and --sink the rows come from and go to a connector: files, buckets, tables of Delta,
    Iceberg or a database, topics of Kafka, which are read as committed. This command starts the servers; the broker of
    Kafka is killed, too. Only processes that this command started are killed. Exit code 1 if any row was lost or
    duplicated.

    With --hosts it runs on several hosts under `holdfast up`, in one long run. It kills the primary, the secondary or
    both with all their processes, half of the time with the loss of their memory; the supervisor; the database. It
    pauses the primary for some seconds, disconnects hosts from the database, and fills the disk for a while.
    """
    from holdfast.graph.policies import as_policy
    from holdfast_lab.workloads.queries import query as named

    named(query)
    as_policy(checkpoint)
    given: dict[str, Any] = {"persist": persist, "checkpoint": checkpoint, "master": master}
    if hosts is not None:
        if kafka or (source, sink) != ("replay", "parquet"):
            raise click.UsageError("--source, --sink and --kafka are for a run without --hosts")
        if executor is not None:
            raise click.UsageError("--executor is for a run without --hosts")
        result = _against_hosts(query, faults, seed, kinds, hosts, scheme, meta, detection, given)
    else:
        result = _against_one(
            query,
            faults,
            seed,
            kinds,
            {**given, "executor": executor},
            *(("kafka", "kafka") if kafka else (source, sink)),
        )
    _show(result)
    if as_json:
        click.echo(json.dumps(result.to_json()))
    if not result.equal:
        raise SystemExit(1)


def _against_one(
    query: str, faults: int, seed: int, kinds: list[str] | None, given: dict[str, Any], source: str, sink: str
) -> CampaignResult:
    from holdfast_lab.chaos.campaign import Campaign
    from holdfast_lab.chaos.connector_servers import open_servers

    clustered = (given["master"] or "").startswith("local-cluster")
    crew = given["executor"] != "jobs"
    default = ["driver", "java", "worker", "workers", "stop", "memory", *(["cut", "unreachable"] if crew else [])]
    kafka = "kafka" in (source, sink)
    if kafka:
        default = ["driver", "java", "worker", "workers", "host", "broker"]
    chosen = _checked(kinds, KINDS, [*default, *(["executor"] if clustered else [])])
    if "broker" in chosen and not kafka:
        raise click.UsageError("a broker of its own to kill: give --source kafka or --sink kafka")
    if not crew and OF_CREWS & set(chosen):
        raise click.UsageError("only workers of a crew have connections to each other: leave out --executor jobs")
    if "executor" in chosen and not clustered:
        raise click.UsageError("separate executors to kill: give --master 'local-cluster[2,1,1024]'")
    master = given.pop("master")
    with (
        TemporaryDirectory(prefix="holdfast-chaos-", ignore_cleanup_errors=True) as directory,
        open_servers({source, sink}, click.echo) as servers,
    ):
        ends: dict[str, Any] = {"source": source, "sink": sink, "servers": servers}
        return Campaign(query, faults, seed, chosen, Path(directory), master, click.echo, **ends, **given).run()


def _against_hosts(
    query: str,
    faults: int,
    seed: int,
    kinds: list[str] | None,
    hosts: int,
    scheme: str | None,
    meta: str,
    detection: float,
    given: dict[str, Any],
) -> CampaignResult:
    from holdfast.replica.scheme_change import named
    from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
    from holdfast_lab.chaos.host_campaign import HostCampaign, HostCampaignSettings
    from holdfast_lab.chaos.host_faults import HOST_KINDS, NEEDS_DATABASE, default_kinds

    mixed = scheme in (None, "mixed")
    database = meta == "postgresql"
    chosen = _checked(kinds, HOST_KINDS, default_kinds(database=database, mixed=mixed))
    if not database and any(kind in NEEDS_DATABASE for kind in chosen):
        raise click.UsageError("a separate database to kill: give --meta postgresql")
    first = ACTIVE_STANDBY if mixed else named(scheme or "")
    settings = HostCampaignSettings(
        query=query, faults=faults, seed=seed, kinds=chosen, hosts=hosts, scheme=first, mixed=mixed, database=database,
        detection=detection, **given,
    )  # fmt: skip
    with (
        TemporaryDirectory(prefix="holdfast-chaos-", ignore_cleanup_errors=True) as directory,
        TemporaryDirectory(prefix="holdfast-chaos-", dir=volatile_parent(), ignore_cleanup_errors=True) as volatile,
    ):
        return HostCampaign(settings, Path(directory), Path(volatile) / "hosts", click.echo).run()


def _show(result: CampaignResult) -> None:
    from holdfast.ui.figures import duration

    said = result.to_json()

    def times(found: dict[str, Any]) -> str:
        return ", ".join(f"{name} {duration(found[name] / 1_000)}" for name in ("p50", "p95"))

    click.echo(
        f"{counted(said['faults'], 'fault')} in {counted(said['rounds'], 'run')} of"
        f" {counted(said['output_rows'], 'row')} out, seed {said['seed']}"
    )
    click.echo(
        f"rows lost {said['lost']}, duplicated {said['duplicated']}: " + ("equal" if said["equal"] else "NOT EQUAL")
    )
    click.echo(f"recovery {times(said['recovery_ms'])}")
    for kind, found in said["by_kind"].items():
        click.echo(f"  {kind}: {counted(found['faults'], 'fault')}, {times(found)}")
