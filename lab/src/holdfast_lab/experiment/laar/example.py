"""Experiment `laar-example`, Figs. 1 to 3 of LAAR, for real: two PEs on two hosts with a core each, replicated
statically and by load, while the input doubles and falls again."""

from __future__ import annotations

from statistics import median
from typing import Any

from holdfast.errors import DescriptorError
from holdfast.laar.descriptor import Descriptor, read_descriptor
from holdfast.laar.model import Model
from holdfast.laar.optimiser import solve
from holdfast.laar.reaction import RateTrace
from holdfast.laar.strategy import Strategy, static_strategy
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.laar.example_hosts import FRAGMENTS, HOSTS, HostRun, example_descriptor, ran_on_hosts
from holdfast_lab.experiment.laar.example_pipeline import Example
from holdfast_lab.experiment.laar.simulated_deployment import DeploymentFigures, SimulatedDeployment, simulate
from holdfast_lab.experiment.plots import COLOURS

__all__ = ["EXPERIMENT", "bars"]

_LOW, _HIGH, _COST, _CAPACITY, _TARGET, _TICK = 4.0, 8.0, 0.06, 0.6, 0.6, 1.0
_LAG = 4.0
"""Seconds after a change of the input that are left to those who follow it."""
_SOURCE = "LAAR, §4.1, Fig. 3"
_PAPER: tuple[Row, ...] = (
    {"variant": "static", "follows": None, "source": f"{_SOURCE}a: 'not able to keep up with the input rate'"},
    {"variant": "LAAR", "follows": 1.0, "source": f"{_SOURCE}b: 'allow the output stream to follow the input'"},
)


def run(settings: Settings) -> Result:

    low, high, rest = settings.pick(quick=(22.0, 16.0, 10.0), full=(50.0, 30.0, 40.0))
    steps = ((low, _LOW), (high, _HIGH), (rest, _LOW))
    descriptor = example_descriptor(_LOW, _HIGH, _COST, _CAPACITY, _TARGET)
    runs: dict[str, HostRun] = {}
    for name, said in (("static", None), ("LAAR", descriptor)):
        place = settings.work / name
        example = Example(str(place / "out"), steps, _COST, _TICK, None if said is None else _TARGET)
        settings.say(f"{name}: two hosts are started, then {example.tide.period:.0f} s of input")
        runs[name] = ran_on_hosts(place, example, said, settings.say)
    own = _simulated(runs["static"], runs["LAAR"])
    rows = [_row(name, runs[name], own[name]) for name in runs]
    series = {name: _series(run) for name, run in runs.items()}
    return Result(
        keys=("variant",),
        rows=rows,
        paper=_PAPER,
        bars=bars(rows),
        notes=_notes(),
        plot=lambda figure: _plot(figure, series),
        shown=("follows", "simulated_follows", "behind_s", "pe_cpu_s", "simulated_pe_cpu_s", "beside_cpus_low",
               "beside_cpus_high", "decisions", "activation_s", "activation_max_s", "idle_epochs", "lost_or_doubled"),
        also={"series": series, "descriptor": descriptor},
    )  # fmt: skip


def _row(name: str, run: HostRun, simulated: DeploymentFigures) -> dict[str, Any]:

    (low, _), (high, rate), _ = run.example.steps
    begin, end = low + _LAG, low + high
    expected = round(run.example.tide.until(run.example.tide.period - 1e-9))
    last = max(at for at, _ in run.output())
    active = run.activations()
    return {
        "variant": name,
        "follows": run.put_out(begin, end) / rate,
        "simulated_follows": simulated.peak / (rate * high),
        "behind_s": max(0.0, last - run.example.tide.period),
        "pe_cpu_s": sum(run.used(fragment, host, 0.0, last) for fragment in FRAGMENTS for host in HOSTS),
        "simulated_pe_cpu_s": simulated.cycles,
        "beside_cpus_low": _cpus_apart_from_epochs(run, 5.0, low),
        "beside_cpus_high": _cpus_apart_from_epochs(run, begin, end),
        "decisions": len(run.decisions()),
        "decision_ms": max((decision["seconds"] for decision in run.decisions()), default=0.0) * 1e3,
        "activation_s": median(active) if active else None,
        "activation_max_s": max(active) if active else None,
        "idle_epochs": run.idle_epochs(),
        "lost_or_doubled": abs(expected - run.tuples) + abs(run.total - run.tuples),
        **{f"host_{host}_cpus_low": run.host_used(host, 5.0, low) for host in HOSTS},
        **{f"host_{host}_cpus_high": run.host_used(host, begin, end) for host in HOSTS},
    }


def _cpus_apart_from_epochs(run: HostRun, begin: float, end: float) -> float:
    """CPUs that the hosts took beside what their replicas' epochs did: Spark, and whatever idle replicas may do."""

    spent = sum(run.used(fragment, host, begin, end) for fragment in FRAGMENTS for host in HOSTS)
    return sum(run.host_used(host, begin, end) for host in HOSTS) - spent / (end - begin)


def _simulated(known: HostRun, led: HostRun) -> dict[str, DeploymentFigures]:
    """The same application on the simulator, with the cost per tuple that was measured of static replication, the part
    of a core that each host had left beside Spark while the input was low, and the decisions of the real controller."""

    told = known.told("processed")
    cost = sum(event["cpu"] for event in told) / sum(event["rows"] for event in told)
    (low, _), (high, _), (rest, _) = known.example.steps
    spans = (5.0, low)
    left = [
        1.0 - (known.host_used(host, *spans)
               - sum(known.used(fragment, host, *spans) for fragment in FRAGMENTS) / (spans[1] - spans[0]))
        for host in HOSTS
    ]  # fmt: skip
    room = [float(f"{max(share, cost * 2 * _LOW * 1.001):.6f}") for share in left]
    said = read_descriptor(example_descriptor(_LOW, _HIGH, float(f"{cost:.6f}"), room, _TARGET))
    strategies = _strategies(said)
    trace = RateTrace(((0, low), (1, high), (0, rest)))
    # One by one: the controller of a simulation is that of its first deployment.
    followed = _followed(led, [config.name for config in said.configs], low + high + rest)
    return {
        name: simulate(Model(said), [SimulatedDeployment(strategy)], trace, followed)[0]
        for name, strategy in strategies.items()
    }


def _strategies(said: Descriptor) -> dict[str, Strategy]:
    """Both variants. Without one for LAAR there is nothing to compare with."""

    laar = solve(said, 10.0).strategy
    if laar is None or said.placement is None:
        raise DescriptorError(
            "no strategy keeps the target on hosts with what was measured of them",
            cure="run it on two cores that have nothing else to do",
        )
    return {"static": static_strategy(said, said.placement), "LAAR": laar}


def _followed(run: HostRun, names: list[str], seconds: float) -> RateTrace:
    """The configurations that the controller went by. It begins with the last, which dominates all rates."""

    parts, now, config = [], 0.0, len(names) - 1
    for decision in sorted(run.decisions(), key=lambda decision: decision["at"]):
        parts.append((config, max(0.0, decision["at"] - now)))
        now, config = max(now, decision["at"]), names.index(decision["to"])
    return RateTrace((*parts, (config, max(0.0, seconds - now))))


def bars(rows: list[dict[str, Any]]) -> list[Bar]:
    by = {row["variant"]: row for row in rows}
    laar, static = by["LAAR"], by["static"]
    return [
        at_least("LAAR: output rate at High / input rate", laar["follows"], 0.95),
        at_most("static: output rate at High / input rate", static["follows"], 0.95),
        at_most("LAAR: from a command to a replica that processes again, in s", laar["activation_max_s"], 1.0),
        at_most("LAAR: a decision, in ms", laar["decision_ms"], 1.0),
        at_most(
            "LAAR at High: CPUs of the hosts beside epochs, over those of static replication at Low",
            laar["beside_cpus_high"] / static["beside_cpus_low"],
            1.0,
        ),
        at_most("LAAR: epochs that deactivated replicas processed", laar["idle_epochs"], 0),
        at_most("tuples lost or doubled", laar["lost_or_doubled"] + static["lost_or_doubled"], 0),
        *(
            at_most(
                f"{name}: simulated output at High off by", abs(row["simulated_follows"] / row["follows"] - 1), 0.15
            )
            for name, row in by.items()
        ),
        at_most("LAAR: simulated CPU time off by", abs(laar["simulated_pe_cpu_s"] / laar["pe_cpu_s"] - 1), 0.15),
    ]


def _notes() -> list[str]:
    return [
        f"Two PEs in a row that spend {_COST} s of CPU time per tuple, {_LOW:g} tuples/s and {_HIGH:g} at High, on two"
        f" hosts that are kept to a core each, of which LAAR reckons with {_CAPACITY:g}: the figures of the paper's"
        " Fig. 1 times 0.6, since a core also has a Spark session to carry.",
        "`follows` is the output rate at High relative to the input's, from"
        f" {_LAG:g} s after the change on. What is not processed in time is not dropped here: the sources wait, and"
        " `behind_s` is how long after the last tuple was due the last one was put out.",
        "`beside_cpus` is what the hosts took beside the tasks of epochs; half of the replicas are idle at High under"
        " LAAR, and what they do beside epochs is in there. `idle_epochs` are epochs that replicas processed which were"
        " not to, from 5 s after the command on. Activation: from the command to"
        " when the replica has run all epochs there are; before that it has loaded the program and read the state.",
        "The simulator is given the cost per tuple and what each host had left beside Spark while the input was low, as"
        " measured of static replication, and when the real controller went to which configuration; it drops what"
        " queues of two seconds cannot hold. A decision is measured in CPU time of the controller.",
    ]


def _series(run: HostRun) -> dict[str, Any]:
    """By the second: input, output, and CPU of each replica."""

    seconds = range(int(max(at for at, _ in run.output())) + 1)
    return {
        "input": [run.example.tide.until(at + 1) - run.example.tide.until(at)
                  if at < run.example.tide.period else 0.0 for at in seconds],
        "output": [run.put_out(at, at + 1) for at in seconds],
        "cpu": {f"{fragment} on {host}": [run.used(fragment, host, at, at + 1) for at in seconds]
                for fragment in FRAGMENTS for host in HOSTS},
        "decisions": run.decisions(),
    }  # fmt: skip


def _plot(figure: Figure, series: dict[str, Any]) -> None:
    """Fig. 3: CPU of the replicas above, input and output below, static on the left."""

    axes = figure.subplots(2, len(series), sharex=True, sharey="row")
    for column, (variant, own) in enumerate(series.items()):
        above, below = axes[0][column], axes[1][column]
        above.set_title(variant)
        for number, (name, values) in enumerate(own["cpu"].items()):
            above.plot(_smooth(values), color=COLOURS[number], label=name)
        below.plot(own["input"], color="black", label="input")
        below.plot(_smooth(own["output"]), color=COLOURS[0], linestyle="--", label="output")
        below.set_xlabel("s")
    axes[0][0].set_ylabel("CPUs of a replica")
    axes[1][0].set_ylabel("tuples/s")
    axes[0][0].legend(fontsize=7)
    axes[1][0].legend()


def _smooth(values: list[float], width: int = 3) -> list[float]:
    return [sum(values[max(0, at - width + 1) : at + 1]) / min(width, at + 1) for at in range(len(values))]


EXPERIMENT = Experiment(
    name="laar-example",
    title="Static replication and LAAR on two real hosts while the input doubles",
    figure="LAAR, Figs. 1 to 3",
    needs="Java 17; two cores that have nothing else to do",
    run=run,
)
