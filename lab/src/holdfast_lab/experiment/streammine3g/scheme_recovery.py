"""Experiment `schemes`, Fig. 2 of StreamMine3G: recovery time and what the secondary takes, scheme by scheme, measured.

Two hosts run a stateful pipeline and go along the wheel from the cheapest scheme to the fastest. In every scheme it is
measured what the secondary takes while nothing fails; then the primary is killed with all its processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

from holdfast.replica.schemes import wheel
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import COLOURS, readable
from holdfast_lab.experiment.streammine3g.plain_restart import PlainSettings, Restarted, restarted
from holdfast_lab.experiment.streammine3g.scheme_kills import (
    BEAT,
    BLOCKS,
    CHECKPOINT_SECONDS,
    RATE,
    STATE_BYTES,
    TICK,
    USERS,
    SchemeKill,
    struck,
)

__all__ = ["EXPERIMENT", "PLAIN", "bars", "bars_of_runs", "plot", "rows_of"]

PLAIN = "Structured Streaming"
_WARM = ("passive standby hot", "passive standby cold")
_WARM_SECONDS = 2.0
_HOT = "passive standby hot"
_HOT_SECONDS = 0.3
_OFF = 0.3
_UNNOTICED = 0.05
_FIGURE = "StreamMine3G, Fig. 2 and Fault Tolerance Mechanisms"
_PAPER = (
    {"scheme": "active replication", "recovery_s": 0.0, "paper_resources": "twice",
     "paper_recovery": "~ 0 sec", "source": f"{_FIGURE}: 'at the cost of consuming twice of the resources'"},
    {"scheme": "active standby", "recovery_s": None, "paper_resources": "less network",
     "paper_recovery": "connect, replay", "source": f"{_FIGURE}: 'saves network resources'"},
    {"scheme": "passive standby hot", "recovery_s": None, "paper_resources": "memory, network",
     "paper_recovery": "connect, replay the queue", "source": f"{_FIGURE}: 'does not perform any processing'"},
    {"scheme": "passive standby cold", "recovery_s": None, "paper_resources": "memory",
     "paper_recovery": "connect, replay from upstream", "source": f"{_FIGURE}: 'no events are sent to the secondary'"},
    {"scheme": "deployed", "recovery_s": None, "paper_resources": "little",
     "paper_recovery": "connect, read checkpoint, replay", "source": _FIGURE},
    {"scheme": "passive replication", "recovery_s": None, "paper_resources": "none",
     "paper_recovery": "deploy, connect, read, replay", "source": _FIGURE},
)  # fmt: skip


def run(settings: Settings) -> Result:

    kills = settings.pick(quick=1, full=3)
    detection = 0.7
    runs = []
    for number in range(1, settings.runs + 1):
        place = settings.work / f"run-{number}"
        place.mkdir()
        if settings.runs > 1:
            settings.say(f"run {number} of {settings.runs}")
        runs.append(struck(replace(settings, work=place), kills, settings.pick(quick=2.0, full=5.0), detection))
    strikes = [kill for found in runs for kill in found]
    asked = PlainSettings(str(settings.work / "plain"), str(settings.work / "run-1" / BLOCKS), RATE, TICK, STATE_BYTES)
    plain = restarted(asked, settings.pick(quick=1, full=3), settings.say)
    rows = rows_of(strikes, plain)
    return Result(
        keys=("scheme",),
        rows=rows,
        paper=_PAPER,
        bars=[*bars(rows), bars_of_runs(runs)],
        notes=_notes(kills, detection, settings.runs),
        plot=lambda figure: plot(figure, rows),
        shown=("recovery_s", "predicted_s", "at_worst_s", "replayed", "detection_s", "gap_s", "usual_s", "cpus",
               "memory_mb", "read_mb_per_s", "written_mb_per_s"),
        also={"strikes": [{"run": run, **kill.to_json()} for run, found in enumerate(runs, 1) for kill in found]},
    )  # fmt: skip


def rows_of(strikes: Sequence[SchemeKill], plain: Sequence[Restarted]) -> list[dict[str, Any]]:
    """A row per scheme in the order of the paper, and one for the restart that it is held against."""

    rows = []
    for scheme in wheel.SCHEMES:
        own = [strike for strike in strikes if strike.scheme is scheme]
        if own:
            rows.append({"scheme": scheme.name, **_figures(own)})
    if plain:
        rows.append(
            {
                "scheme": PLAIN,
                "kills": len(plain),
                "recovery_s": median(restart.seconds for restart in plain),
                "recovery_max_s": max(restart.seconds for restart in plain),
                "gap_s": median(restart.gap for restart in plain),
            }
        )
    return rows


def _figures(strikes: Sequence[SchemeKill]) -> dict[str, Any]:
    """Medians over kills; the worst of them where a bar says how long something may take at most."""
    off = [_off(kill.predicted, kill.gap) for kill in strikes if kill.predicted is not None]
    seconds = ("recovery", "detection", "gap", "usual", "epoch")
    predicted = {
        f"{name}_s": median(known) if known else None
        for name in ("predicted", "at_worst")
        if (known := [value for kill in strikes if (value := getattr(kill, name)) is not None]) is not None
    }
    return {
        "kills": len(strikes),
        **{f"{name}_s": median(getattr(kill, name) for kill in strikes) for name in seconds},
        "recovery_max_s": max(kill.recovery for kill in strikes),
        "noticed_and_recovered_s": max(kill.detection + kill.recovery for kill in strikes),
        "gap_over_usual": max(kill.gap / (kill.usual + kill.epoch) for kill in strikes),
        "replayed": median(kill.replayed for kill in strikes),
        **predicted,
        "predicted_off": median(off) if off else None,
        "cpus": median(kill.secondary.cpus for kill in strikes),
        "cpus_over_primary": median(kill.secondary.cpus / max(1e-9, kill.primary.cpus) for kill in strikes),
        "memory_mb": median(kill.secondary.memory for kill in strikes) / 1e6,
        "read_mb_per_s": median(kill.secondary.read for kill in strikes) / 1e6,
        "written_mb_per_s": median(kill.secondary.written for kill in strikes) / 1e6,
        "to_disk_mb_per_s": median(kill.secondary.to_disk for kill in strikes) / 1e6,
    }


def _off(predicted: float, real: float) -> float:
    """By what share it was wrong; what nobody would notice is not wrong."""
    return 0.0 if abs(predicted - real) <= _UNNOTICED else abs(predicted / real - 1)


def bars(rows: Sequence[Row]) -> list[Bar]:
    """The paper's order, active replication without a gap, predictions that hold, and a warm secondary within 2 s. A
    hot one has its tasks stand before it is needed: once the failure was noticed it takes over at once."""
    known: Mapping[str, Row] = {row["scheme"]: row for row in rows if row["scheme"] != PLAIN}
    active = known.get("active replication", {})
    return [
        at_most("neighbours of the paper's order that recover in another order", _swapped(known), 0),
        at_most(
            "active replication: time without output, over the usual time between commits and one epoch",
            active.get("gap_over_usual"),
            1.0,
        ),
        *(
            at_most(f"{name}: failure noticed and recovered, in s", known.get(name, {}).get("noticed_and_recovered_s"),
                    _WARM_SECONDS)
            for name in _WARM
        ),
        at_most(f"{_HOT}: takeover, without noticing the failure, in s", known.get(_HOT, {}).get("recovery_s"),
                _HOT_SECONDS),
        *(at_most(f"{name}: prediction off by", row["predicted_off"], _OFF) for name, row in known.items()),
    ]  # fmt: skip


def _swapped(known: Mapping[str, Row]) -> int:
    return sum(fast["recovery_s"] > slow["recovery_s"] for fast, slow in pairwise(known.values()))


def bars_of_runs(runs: Sequence[Sequence[SchemeKill]]) -> Bar:
    """Every run by itself must have the paper's order, and predictions that hold."""
    good = 0
    for strikes in runs:
        known = {row["scheme"]: row for row in rows_of(strikes, [])}
        off = [row["predicted_off"] for row in known.values()]
        good += _swapped(known) == 0 and all(one is not None and one <= _OFF for one in off)
    return at_least("runs with the paper's order and all predictions within 30 %", good, len(runs))


def _notes(kills: int, detection: float, runs: int) -> list[str]:

    several = (
        [] if runs == 1 else [f"The rows are of all kills of {runs} runs, each with hosts and a store of its own."]
    )
    return [
        *several,
        f"Totals of {USERS:,} users, with {STATE_BYTES} bytes of state each, from {RATE:,.0f} visits/s, which come as"
        " lines of a log, compressed JSON with"
        f" fields that nobody asks for; an epoch every {TICK:g} s, a checkpoint every {CHECKPOINT_SECONDS:g} s. Both"
        " hosts are on this machine, with a session of two cores each, and share the cores.",
        "Recovery is from when the failure was noticed, as in the paper, to the commit of all that was planned before"
        " it; with passive replication from the start of a process. Under active replication the secondary commits"
        " while nobody has noticed yet, and what is counted is how long it takes to be the primary.",
        "Before each kill the secondary has processed ten epochs as an active standby, so that no scheme has a Java"
        " that was started a moment ago.",
        f"The primary is killed with its Java process and workers, and its memory is removed; {kills} kill(s) per"
        " scheme, while an epoch is in flight and the last checkpoint is one epoch behind, medians are shown. A"
        f" host beats every {BEAT:g} s and is taken for dead after {detection:g} s of silence; that of passive"
        " replication is seen to end by the supervisor. The killed host comes back when all was measured.",
        "With the kill the checkpoint leaves the page cache, which the hosts share here and would not share on two"
        " machines: it is read from the disk.",
        "`gap_s` is for how long there was no output: from the last commit before the kill to the first one after it,"
        " with what passes between two commits anyhow and noticing the failure. That is what is predicted and"
        " guaranteed.",
        "`predicted_s` is what was predicted, from what was known before, for as many epochs as had to be replayed;"
        " `at_worst_s` for a kill just before the next checkpoint, which is what the controller goes by. Predictions"
        f" learn from the kills before; what is off by {_UNNOTICED} s or less counts as right.",
        "CPUs, memory (proportional share) and bytes of the secondary are those of all its processes, by the counters"
        " of the kernel; bytes are those of system calls, which is also how the sockets between its processes count.",
        f"{PLAIN}: the same totals of the same visits, read by the same function, at the same rate and rhythm in plain"
        " Structured Streaming with RocksDB and a change log, as many rows to Parquet files; kill -9 of its driver and"
        " an immediate new start, to the first batch that is committed.",
    ]


def plot(figure: Figure, rows: Sequence[Row]) -> None:
    """Recovery times, measured and predicted, and what the secondary takes."""

    above, below = figure.subplots(2, 1)
    names = [row["scheme"].replace(" ", "\n", 1) for row in rows]
    places = range(len(rows))
    above.bar(places, [row["gap_s"] for row in rows], 0.5, color=COLOURS[0], label="measured")
    for column, marker, label in (("predicted_s", "_", "predicted"), ("at_worst_s", "v", "predicted, at worst")):
        known = [(place, row[column]) for place, row in enumerate(rows) if row.get(column)]
        if known:
            at, values = zip(*known, strict=True)
            wide = {"s": 400, "linewidths": 2.5} if marker == "_" else {"s": 25}
            above.scatter(at, values, marker=marker, color="black", zorder=3, label=label, **wide)
    above.set_yscale("log")
    readable(above.yaxis)
    above.set_ylabel("no output, s")
    above.set_xticks(places, names, fontsize=9)
    above.grid(visible=False, axis="x")
    above.legend(loc="upper left")
    own = [row for row in rows if row["scheme"] != PLAIN]
    kinds = (("cpus", 1.0, "CPUs"), ("memory_mb", 1e3, "memory, GB"), ("read_mb_per_s", 10.0, "read, 10 MB/s"),
             ("written_mb_per_s", 10.0, "written, 10 MB/s"))  # fmt: skip
    for number, (column, unit, label) in enumerate(kinds):
        lefts = [place - 0.3 + 0.2 * number for place in range(len(own))]
        below.bar(lefts, [row[column] / unit for row in own], 0.18, color=COLOURS[1 + number], label=label)
    below.set_xticks(range(len(own)), names[: len(own)], fontsize=9)
    below.set_xlim(*above.get_xlim())
    below.set_ylabel("the secondary takes")
    below.grid(visible=False, axis="x")
    below.legend()


EXPERIMENT = Experiment(
    name="schemes",
    title="Recovery time and resources of the six schemes of keeping a secondary",
    figure="StreamMine3G, Fig. 2",
    needs="Java 17; 4 GB of memory; a machine that has nothing else to do",
    run=run,
    takes=("runs",),
)
