"""`holdfast up`: run a pipeline on several hosts of this machine, and supervise them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.host import check_timing, eviction_option, timing_options
from holdfast.cli.shared_options import (
    CONF_VARIABLE,
    META_VARIABLE,
    LocalPath,
    SecondsRange,
    conf_option,
    deadline_option,
    meta_option,
    retain_option,
    store_option,
    watch_options,
    watched,
)
from holdfast.errors import EpochFailedError
from holdfast.replica.cores import well_spread
from holdfast.replica.eviction_notice import acting_on_eviction
from holdfast.signals import stop_on_signals

if TYPE_CHECKING:
    from holdfast.replica.eviction_notice import EvictionNotice

__all__ = ["up"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@meta_option
@click.option("--hosts", "count", type=click.IntRange(min=0), default=2, show_default=True,
              help="How many hosts to start here; 0 if you start them with `holdfast host`.")  # fmt: skip
@click.option("--scheme", metavar="SCHEME",
              help="Replication scheme, e.g. 'active standby'.  [default: chosen by the guarantee]")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master of each host.  [default: this machine]")
@conf_option
@click.option("--latency", type=SecondsRange(min=0, min_open=True), default=1.0, show_default=True,
              metavar="DURATION", help="How long an epoch may take.")  # fmt: skip
@click.option("--trigger", metavar="DURATION",
              help="Start at most one epoch per DURATION, e.g. '1 min', with all input so far.")  # fmt: skip
@click.option(
    "--partitions", type=click.IntRange(min=1),
    help="Partitions of stateful operators.  [default: 2; with a latency of up to 50 ms, 1 until that is too slow]",
)  # fmt: skip
@click.option("--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="Number of reading tasks.")
@click.option("--executor", type=click.Choice(["crew", "jobs"]),
              help="How epochs run: on a crew of long-running workers, or as one Spark job each.  "
              "[default: a crew if possible]")  # fmt: skip
@retain_option
@click.option("--until-idle", is_flag=True, help="Stop when the sources have no new input.")
@click.option("--max-epochs", type=click.IntRange(min=1), metavar="N", help="Stop after epoch N.")
@click.option("--checkpoint", default="delta", show_default=True, metavar="POLICY",
              help="When state is made durable: delta, interval(5s) or none.")  # fmt: skip
@click.option(
    "--no-durable", is_flag=True, help="Do not sync to disk: survives a crash of hosts, but not a power failure."
)
@click.option("--calm", type=SecondsRange(min=0), metavar="DURATION",
              help="How long a slower scheme must be safe before a switch to it.  [default: 15 minutes]")  # fmt: skip
@click.option("--events", type=LocalPath(file_okay=False), metavar="DIR",
              help="Each host appends its events to a file there, as JSON lines.")  # fmt: skip
@click.option("--volatile", type=LocalPath(file_okay=False), metavar="DIR",
              help="Where hosts keep state that is lost with them.  [default: in memory]")  # fmt: skip
@click.option("--meta-of", multiple=True, metavar="HOST=URL",
              help="The meta store's URL for one host, if it differs from --meta.")  # fmt: skip
@click.option("--pin", is_flag=True, help="Give each host its own cores.")
@click.option("--elsewhere", multiple=True, metavar="NAME",
              help="A host on another machine that LAAR plans with; repeatable.")  # fmt: skip
@click.option("--descriptor", type=LocalPath(dir_okay=False), metavar="FILE",
              help="LAAR descriptor of the application.  [default: measured while it runs]")  # fmt: skip
@click.option("--capacity", type=click.FloatRange(min=0, min_open=True), metavar="CPUS",
              help="CPUs of each host, for LAAR.  [default: its share of this machine, less Spark's]")  # fmt: skip
@click.option("--measure-every", type=SecondsRange(min=1), default=60.0, show_default=True, metavar="DURATION",
              help="How often LAAR plans again which replicas are active.")  # fmt: skip
@click.option("--shadow", is_flag=True,
              help="Follow the hosts that run an older version, and compare the output; emit nothing.")  # fmt: skip
@click.option("--compare", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
              help="With --shadow: how many epochs must be equal.")  # fmt: skip
@click.option("--promote", is_flag=True, help="With --shadow: take over as soon as they are equal.")
@deadline_option
@watch_options
@eviction_option
@timing_options
def up(
    target: str,
    store: Path,
    meta: str | None,
    count: int,
    scheme: str | None,
    master: str | None,
    conf: dict[str, str],
    checkpoint: str,
    no_durable: bool,
    calm: float | None,
    events: Path | None,
    volatile: Path | None,
    meta_of: tuple[str, ...],
    pin: bool,
    elsewhere: tuple[str, ...],
    descriptor: Path | None,
    capacity: float | None,
    measure_every: float,
    ui_address: tuple[str, int] | None,
    metrics_address: tuple[str, int] | None,
    otlp: str | None,
    openlineage: str | None,
    eviction: EvictionNotice | None,
    beat: float,
    detection: float,
    shadow: bool,
    compare: int,
    promote: bool,
    **settings: Any,
) -> None:
    """Run the pipeline NAME declared in FILE on several hosts, so that it survives the failure of one.

    Ctrl-C and SIGTERM stop the hosts after the epochs in flight. Hosts that are killed are started again. If this
    command is killed, they keep running, and the next `holdfast up` supervises them.

    With --shadow, FILE is new code of a pipeline that hosts are running. It follows them with its own state until N
    epochs were equal, or one was not. The exit code is 0 only if they are equal.
    """
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.engine.options import RunOptions
    from holdfast.ingress.receivers import embedded_receivers
    from holdfast.meta import MetaStore, ReplicaMeta
    from holdfast.meta.lease_holder import this_process
    from holdfast.replica.completeness import CompletenessSettings, completeness_planner
    from holdfast.replica.deployment import check_detection, deploy, deployment_of
    from holdfast.replica.keeper import Timing
    from holdfast.replica.scheme_change import named
    from holdfast.replica.seat_store import Agreement
    from holdfast.replica.supervisor import HostProcess, Supervisor
    from holdfast.ui.views import listening

    if shadow:
        from holdfast.cli.shadow_follower import follow_as_shadow

        follow_as_shadow(
            target, store, meta, epochs=compare, promote=promote, master=master, conf=conf, volatile=volatile,
            executor=settings["executor"],
        )  # fmt: skip
        return
    check_timing(beat, detection)
    names = [chr(ord("a") + number) for number in range(count)]
    ways = _ways(meta_of, names)
    pipeline = load_pipeline(target)
    pipeline.check()
    store = store.resolve()
    opened = MetaStore(meta or store, sync=not no_durable)
    options = RunOptions(store=store, meta=meta, durable=not no_durable, **settings)
    try:
        asked = None if scheme is None else named(scheme)
        if (said := check_detection(pipeline, asked, Timing(beat=beat, detection=detection))) is not None:
            click.echo(said)
        keeping = CompletenessSettings(descriptor, capacity, pin, measure_every)
        planner = completeness_planner(pipeline, store, opened, names, elsewhere, keeping, click.echo)
        plan = None if planner is None else planner.plan()
        deployment = deployment_of(pipeline, _absolute(target), options, opened, asked, checkpoint, names, calm, plan)
        agreement = Agreement(opened, this_process(), time.time)
        deploy(deployment, agreement, opened)
        arguments = ["--store", str(store), "--beat", str(beat), "--detection", str(detection)]
        arguments += ["--volatile", str(volatile.resolve())] if volatile is not None else []
        arguments += ["--master", master] if master is not None else []
        cores = well_spread(names)
        hosts = {}
        for name in names:
            more = ["--events", str(events.resolve() / f"{name}.events")] if events is not None else []
            more += ["--cores", ",".join(map(str, cores[name]))] if pin else []
            way = ways.get(name, meta)
            secrets = {META_VARIABLE: way} if way is not None else {}
            secrets |= {CONF_VARIABLE: json.dumps(conf)} if conf else {}
            hosts[name] = HostProcess(name, store, [*arguments, *more], secrets)
        supervisor = Supervisor(deployment, agreement, hosts, detection, lambda text: click.echo(text),
                                None if planner is None else planner.tick)  # fmt: skip
        receivers = embedded_receivers(
            pipeline, store, meta=meta, sync=options.durable, on_open=lambda addresses: click.echo(listening(addresses))
        )

        def evicted(reason: str) -> None:
            supervisor.stop()
            click.echo(f"stopping the hosts: {reason}")

        with (
            stop_on_signals(supervisor.stop, lambda: click.echo("stopping the hosts")),
            watched(store, meta, ui_address, metrics_address, otlp, openlineage),
            acting_on_eviction(eviction, evicted),
            receivers,
        ):
            failed = supervisor.run()
        if not supervisor.stopping:
            ReplicaMeta(opened).withdraw(pipeline.name)
    finally:
        opened.close()
    for fragment, problem in failed.items():
        raise EpochFailedError(f"'{fragment}' failed repeatedly: {problem}", cure="fix it and start again")


def _ways(given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """By host, the URL at which it reaches the meta store."""
    ways = {}
    for entry in given:
        name, _, url = entry.partition("=")
        if name not in names or not url:
            started = f"hosts that are started here: {', '.join(names) or 'none'}"
            raise click.BadParameter(f"'{entry}' is not HOST=URL ({started})", param_hint="--meta-of")
        ways[name] = url
    return ways


def _absolute(target: str) -> str:
    path, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and not Path(target).exists():
        return f"{Path(path).resolve()}:{name}"
    return str(Path(target).resolve())
