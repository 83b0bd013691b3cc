"""The shape of a pipeline: what must stay the same for its state to make sense to a later run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import PipelineChangedError
from holdfast.graph.nodes import KeyedProcess, Stateful, StreamJoin, WindowAggregate
from holdfast.plan.program import Program

__all__ = ["check_shape", "shape_of_program"]


def shape_of_program(program: Program) -> dict[str, Any]:
    """Sources with their time, and stateful operators with all that decides what their state means."""
    return {
        "sources": {
            node.name: {"time": None if node.time is None else [node.time.column, node.time.unit]}
            for node in program.sources
        },
        "operators": {node.name: _shape_of(node, program) for node in program.stateful},
    }


def _shape_of(node: Stateful, program: Program) -> dict[str, Any]:
    source = program.nodes[node.inputs[0]].schema
    shape: dict[str, Any] = {
        "kind": type(node).__name__,
        "keys": {key: str(source[key]) for key in node.keys},
    }
    if isinstance(node, WindowAggregate | StreamJoin):
        shape["window"] = str(node.window)
    if isinstance(node, WindowAggregate):
        shape["state"] = {name: str(dtype) for name, dtype in node.state_schema.items()}
    elif isinstance(node, KeyedProcess):
        shape["state"] = {name: str(dtype) for name, dtype in node.state.items()}
    else:
        shape["state"] = [
            {name: str(dtype) for name, dtype in program.nodes[upstream].schema.items()} for upstream in node.inputs
        ]
    return shape


def check_shape(pipeline: str, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Refuse to run on state that the pipeline, as it is now, would misread."""
    if before is None:
        return
    for part in ("sources", "operators"):
        for name, shape in before[part].items():
            if name not in now[part]:
                raise _changed(pipeline, name, f"{part[:-1]} '{name}' is gone, and the store has what it came to")
            for key, value in shape.items():
                if now[part][name].get(key) != value:
                    found = now[part][name].get(key)
                    raise _changed(pipeline, name, f"{key} of '{name}' was {value}, and is {found} now")
        for name in now[part]:
            if name not in before[part]:
                raise _changed(pipeline, name, f"{part[:-1]} '{name}' is new, and the store knows nothing of it")


def _changed(pipeline: str, operator: str, difference: str) -> PipelineChangedError:
    return PipelineChangedError(
        f"pipeline '{pipeline}' has changed: {difference}",
        cure="give the pipeline another name or choose another --store to start afresh, or undo the change",
        operator=operator,
    )
