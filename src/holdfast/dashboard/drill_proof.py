"""Whether a failure has left the output as it must be, by digests: epochs around it are run again in this process from
the state before them, and their rows and state are compared with what was committed and what readers of the sinks see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.engine.epoch_rerun import EpochRunner, running_again
from holdfast.errors import HoldfastError
from holdfast.graph.pipeline import Pipeline

__all__ = ["DrillProof", "can_be_proved", "proved"]


@dataclass(slots=True)
class DrillProof:
    """The epochs that were compared, what of them differs, and why others could not be."""

    compared: list[int] = field(default_factory=list)
    differences: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def can_be_proved(pipeline: Pipeline, store: Path, meta: str | None, fragment: str) -> str:
    """Why the last epoch of a fragment cannot be run again; empty if it can."""
    try:
        with running_again(pipeline, store, meta, fragment=_named(pipeline, fragment)) as runner:
            if not runner.known.records:
                return f"'{fragment}' has committed nothing yet"
            runner.known.check(max(runner.known.records))
    except HoldfastError as error:
        return str(error)
    return ""


def proved(pipeline: Pipeline, store: Path, meta: str | None, fragment: str, epochs: Sequence[int]) -> DrillProof:
    """Run these epochs again and compare them."""
    proof = DrillProof()
    try:
        with running_again(pipeline, store, meta, fragment=_named(pipeline, fragment)) as runner:
            _check_chain(runner, epochs, proof)
            for epoch in epochs:
                found = runner.compared(epoch)
                if found.equal is None:
                    proof.problem = found.verdict()
                    continue
                proof.compared.append(epoch)
                proof.differences |= {f"epoch {epoch}, {what}": how for what, how in found.differences.items()}
    except (HoldfastError, OSError) as error:
        proof.problem = str(error)
    return proof


def _check_chain(runner: EpochRunner, epochs: Sequence[int], proof: DrillProof) -> None:
    """Every epoch up to the last of these is committed, once, and has read what was planned."""
    known = runner.known
    for epoch in epochs:
        record, plan = known.records.get(epoch), known.plans.get(epoch)
        if record is None or plan is None:
            proof.differences[f"epoch {epoch}"] = "it is not committed"
        elif dict(record.positions) != dict(plan.positions):
            proof.differences[f"epoch {epoch}, input"] = "it did not read what was planned"


def _named(pipeline: Pipeline, fragment: str) -> str | None:
    return None if fragment == pipeline.name else fragment
