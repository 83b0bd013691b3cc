"""Changes of a pipeline's code: checked against the store before anything starts, and recorded at the start."""

from __future__ import annotations

from dataclasses import replace

from holdfast.epoch.transaction import committing
from holdfast.graph.nodes import SourceNode, Stateful
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Lease, MetaStore
from holdfast.plan.evolution import Evolution, evolve
from holdfast.plan.program import Program
from holdfast.pstream import Placement, StreamDescription
from holdfast.state.inspection import kept_shape

__all__ = ["check_changes", "placement_now", "take_changes"]


def check_changes(program: Program, meta: MetaStore) -> None:
    """Refuse a program that the store of its pipeline does not fit. Nothing is written."""
    _evolution(program, meta, None)


def take_changes(program: Program, meta: MetaStore, lease: Lease, partitions: int, now: float) -> int:
    """Go on with a program, changed or not, in one transaction; the last committed epoch.

    From here on the store has the operators' new names. Other numbers of partitions are commands, which the next plan
    obeys: what is planned already runs as planned.
    """
    committed, evolution = _evolution(program, meta, partitions)
    with committing(meta, lease) as transaction:
        transaction.shape(evolution.shape)
        if evolution.sources or evolution.operators:
            transaction.rename(evolution.sources, evolution.operators)
        for command in evolution.commands:
            transaction.ask(command, now)
    return committed


def _evolution(program: Program, meta: MetaStore, partitions: int | None) -> tuple[int, Evolution]:
    last = meta.last_commit(program.name)
    committed = 0 if last is None else last.epoch
    return committed, evolve(program, kept_shape(meta, program.name), committed, partitions)


def placement_now(pipeline: Pipeline, stream: StreamDescription) -> Placement:
    """Where a p-stream cuts a pipeline, by the names that the operators have now."""
    renamed = [node for node in pipeline.nodes.values() if isinstance(node, SourceNode | Stateful)]
    names = {node.was: node.name for node in renamed if node.was is not None}
    found = stream.placement
    assert found is not None
    place = found.place
    window = place.window if place.window is None else names.get(place.window, place.window)
    return replace(found, place=replace(place, after=names.get(place.after, place.after), window=window))
