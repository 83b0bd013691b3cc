"""Which experiments there are: a name, and the module of this package that has it.

A name is here before its module is written; until then the list leaves it out.
"""

from __future__ import annotations

import importlib
import importlib.util

from holdfast.errors import DeclarationError
from holdfast.experiment.frame import Experiment

__all__ = ["MODULES", "experiment", "names"]

MODULES = {
    "queries": "queries",
    "persistence": "persistence",
    "checkpoint-overhead": "checkpoint_overhead",
    "recovery": "recovery",
    "data-reduction": "data_reduction",
    "adaptive-compression": "adaptive_compression",
    "codecs": "codecs",
    "word-count-recovery": "word_count_recovery",
    "checkpoint-interval": "checkpoint_interval",
    "parallel-recovery": "parallel_recovery",
    "state-overhead": "state_overhead",
    "interval-tradeoff": "interval_tradeoff",
    "scale-out-open-loop": "scale_out_open_loop",
    "threshold": "threshold",
    "manual-vs-auto": "manual_vs_auto",
    "cec-baseline": "cec_baseline",
    "cec-q": "cec_q",
    "cec-u": "cec_u",
    "cec-period": "cec_period",
    "cec-policies": "cec_policies",
    "schemes": "schemes",
    "controller": "controller",
    "laar-example": "laar_example",
    "laar-search": "laar_search",
    "laar-cost": "laar_cost",
    "laar-peak": "laar_peak",
    "laar-failures": "laar_failures",
    "laar-summary": "laar_summary",
}


def names() -> list[str]:
    """Of the experiments whose modules exist. Imports none of them."""
    return [name for name in MODULES if importlib.util.find_spec(_path(name)) is not None]


def experiment(name: str) -> Experiment:
    known = names()
    if name not in known:
        raise DeclarationError(f"there is no experiment '{name}'", cure=f"choose one of: {', '.join(known)}")
    found = importlib.import_module(_path(name)).EXPERIMENT
    assert isinstance(found, Experiment), f"{_path(name)}.EXPERIMENT is not an Experiment"
    assert found.name == name, f"{_path(name)} calls itself '{found.name}', not '{name}'"
    return found


def _path(name: str) -> str:
    return f"holdfast.experiment.{MODULES[name]}"
