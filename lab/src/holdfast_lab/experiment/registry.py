"""Which experiments there are: a name, and the module below this package that has it as `EXPERIMENT`, by paper."""

from __future__ import annotations

import ast
import importlib
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import DeclarationError
from holdfast_lab.experiment.definition import Experiment

__all__ = ["MODULES", "Summary", "experiment", "names", "summary"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a list shows of an experiment: fields of its `EXPERIMENT`, all of them plain text in the code."""

    name: str
    title: str
    figure: str
    needs: str


MODULES = {
    "queries": "scabbard.query_comparison",
    "persistence": "scabbard.persistence",
    "unaligned-checkpoints": "scabbard.unaligned_checkpoints",
    "checkpoint-overhead": "scabbard.checkpoint_overhead",
    "recovery": "scabbard.kill_recovery",
    "data-reduction": "scabbard.data_reduction",
    "adaptive-compression": "scabbard.adaptive_compression",
    "remote-clients": "scabbard.remote_clients",
    "remote-storage": "scabbard.remote_storage",
    "codecs": "scabbard.codec_comparison",
    "word-count-recovery": "seep.word_count_recovery",
    "checkpoint-interval": "seep.checkpoint_interval",
    "parallel-recovery": "seep.parallel_recovery",
    "state-overhead": "seep.state_overhead",
    "interval-tradeoff": "seep.interval_tradeoff",
    "linear-road": "seep.linear_road_loop",
    "scale-out-open-loop": "seep.scale_out_open_loop",
    "threshold": "seep.scaling_threshold",
    "manual-vs-auto": "seep.manual_vs_auto",
    "cec-baseline": "cec.baseline",
    "cec-q": "cec.q_target",
    "cec-u": "cec.u_target",
    "cec-period": "cec.period",
    "cec-policies": "cec.policy_comparison",
    "schemes": "streammine3g.scheme_recovery",
    "controller": "streammine3g.controller",
    "laar-example": "laar.example",
    "laar-search": "laar.search",
    "laar-cost": "laar.cost",
    "laar-peak": "laar.peak",
    "laar-failures": "laar.failures",
    "laar-summary": "laar.summary",
}


def names() -> list[str]:
    """Of all experiments. Imports none of them."""
    return list(MODULES)


def experiment(name: str) -> Experiment:
    if name not in MODULES:
        raise DeclarationError(f"there is no experiment '{name}'", cure=f"choose one of: {', '.join(MODULES)}")
    path = f"holdfast_lab.experiment.{MODULES[name]}"
    found = importlib.import_module(path).EXPERIMENT
    assert isinstance(found, Experiment), f"{path}.EXPERIMENT is not an Experiment"
    assert found.name == name, f"{path} calls itself '{found.name}', not '{name}'"
    return found


def summary(name: str) -> Summary:
    """Read from the code of an experiment: a list need not wait for its imports, such as Spark and matplotlib."""
    path = Path(__file__).parent.joinpath(*MODULES[name].split(".")).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPERIMENT":
            assert isinstance(node.value, ast.Call)
            given = {word.arg: word.value for word in node.value.keywords}
            return Summary(*(ast.literal_eval(given[field]) for field in ("name", "title", "figure", "needs")))
    raise AssertionError(f"{path} has no EXPERIMENT")
