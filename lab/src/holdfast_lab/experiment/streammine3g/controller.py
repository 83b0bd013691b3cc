"""Experiment `controller`, Fig. 3 of StreamMine3G: schemes that are changed as load and state change.

It has two parts: days of load in fast motion on the simulated wheel, and minutes of load on real hosts that are killed.
"""

from __future__ import annotations

from holdfast_lab.experiment.definition import Experiment, Result, Settings
from holdfast_lab.experiment.streammine3g.controller_hosts import real
from holdfast_lab.experiment.streammine3g.controller_load import simulated
from holdfast_lab.experiment.streammine3g.controller_parts import combined

__all__ = ["EXPERIMENT"]

_TEXT = "StreamMine3G, Fault Tolerance Mechanisms"
_PAPER = (
    {"active_recovery_s": 0.0, "source": "StreamMine3G, Fig. 2: 'Recovery Time ~ 0 sec' for active replication"},
    {"active_cpus_over_one": 2.0, "source": f"{_TEXT}: 'at the cost of consuming twice of the resources'"},
    {"cost_over_active": None, "source": "StreamMine3G, Fig. 3: 'Goal: Satisfy user & save resources', no figures"},
)
_SHOWN = (
    "moves", "violations_s", "impossible_s", "money_per_h", "best_fixed", "cost_over_fixed", "cost_over_active",
    "cost_over_least", "active_recovery_s", "kills", "broken", "worst_recovery_s", "mostly",
)  # fmt: skip


def run(settings: Settings) -> Result:

    parts = [simulated(settings)]
    if not settings.quick:  # minutes of real time
        parts.append(real(settings))
    return combined(parts, _PAPER, _SHOWN)


EXPERIMENT = Experiment(
    name="controller",
    title="The cheapest scheme that keeps the guarantee, over days of load and on real hosts",
    figure="StreamMine3G, Fig. 3",
    needs="without --quick: Java 17, 4 GB of memory, a machine that has nothing else to do",
    run=run,
    takes=("days", "recovery"),
)
