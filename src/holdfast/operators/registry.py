"""The list of all stateful operators, and where everybody finds the one that a node is run by."""

from __future__ import annotations

from typing import Any

from holdfast.errors import DeclarationError
from holdfast.graph.nodes import Stateful
from holdfast.operators.clocked_process import ClockedProcesses
from holdfast.operators.contract import Operator
from holdfast.operators.count_window import CountWindows
from holdfast.operators.deduplication import Deduplications
from holdfast.operators.interval_join import IntervalJoins
from holdfast.operators.keyed_process import KeyedProcesses
from holdfast.operators.operator_errors import named_errors
from holdfast.operators.session_window import SessionWindows
from holdfast.operators.step import StepContext, StepInput, StepResult
from holdfast.operators.stream_join import StreamJoins
from holdfast.operators.time_window import TimeWindows
from holdfast.state.manifest import Manifest

__all__ = ["OPERATORS", "assemble", "operator_of"]

OPERATORS: list[type[Operator[Any]]] = [
    TimeWindows,
    SessionWindows,
    CountWindows,
    StreamJoins,
    IntervalJoins,
    KeyedProcesses,
    ClockedProcesses,
    Deduplications,
]


def operator_of(node: Stateful) -> Operator[Any]:
    """The operator that runs a node."""
    window = getattr(node, "window", None)
    for operator in OPERATORS:
        if operator.declared_as is type(node) and (operator.window is None or operator.window is type(window)):
            return operator(node)
    raise DeclarationError(
        f"nothing runs a {type(node).__name__}" + ("" if window is None else f" in {window}"),
        cure="list its operator in operators/registry.py",
        operator=node.name,
    )


def assemble(node: Stateful, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
    """Run the operator's step; what it raises is named after it."""
    with named_errors(node.name, context.epoch):
        return operator_of(node).step(arrivals, context, manifest)
