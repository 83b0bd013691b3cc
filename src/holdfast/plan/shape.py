"""The shape of a pipeline: what must stay the same for its state to make sense to a later run.

A shape also says what is needed to read state without the pipeline's code: the tables of each operator, and the values
of columns that were added. Those parts are not compared; they follow from the parts that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import PipelineChangedError
from holdfast.graph.nodes import Stateful
from holdfast.operators.registry import operator_of
from holdfast.plan.program import Program
from holdfast.state.dtypes import widens

__all__ = ["check_shape", "shape_of_program"]

_AFRESH = "give the pipeline another name or choose another --store to start afresh, or undo the change"
_NOT_COMPARED = ("state", "tables", "defaults", "partitions")


def shape_of_program(program: Program, partitions: int | None = None) -> dict[str, Any]:
    """Sources with their time, and stateful operators with all that decides what their state means.

    With `partitions`, the number that operators have by default, the shape says how many each was declared to have.
    """
    shapes = {node.name: _shape_of(node, program) for node in program.stateful}
    for node in program.stateful if partitions is not None else ():
        shapes[node.name]["partitions"] = (node.partitions or partitions) if node.keys else 1
    return {
        "sources": {
            node.name: {"time": None if node.time is None else [node.time.column, node.time.unit]}
            for node in program.sources
        },
        "operators": shapes,
    }


def _shape_of(node: Stateful, program: Program) -> dict[str, Any]:
    operator, inputs = operator_of(node), program.inputs_of(node)
    return {
        "kind": type(node).__name__,
        "keys": {key: str(inputs[0][key]) for key in node.keys},
        **operator.meaning(inputs),
        "tables": {
            table.name: {
                "keyed": table.keyed,
                "columns": {name: str(dtype) for name, dtype in table.schema.items()},
                "filled": list(table.filled),
            }
            for table in operator.tables(inputs)
        },
    }


def check_shape(pipeline: str, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
    """Refuse to run on state that the pipeline, as it is now, would misread."""
    if before is None:
        return
    for part in ("sources", "operators"):
        for name, shape in before[part].items():
            if name not in now[part]:
                raise _changed(
                    pipeline, name, f"{part[:-1]} '{name}' is gone, and the store has what it came to",
                    f"if it has another name now, give that one was='{name}'; else {_AFRESH}",
                )  # fmt: skip
            for key, value in shape.items():
                found = now[part][name].get(key)
                if key not in _NOT_COMPARED and found != value:
                    raise _changed(pipeline, name, f"{key} of '{name}' was {value}, and is {found} now")
            if part == "operators":
                _check_state(pipeline, name, shape, now[part][name])
        for name in now[part]:
            if name not in before[part]:
                raise _changed(
                    pipeline, name, f"{part[:-1]} '{name}' is new, and the store knows nothing of it",
                    f"if it had another name before, give it was='that name'; else {_AFRESH}",
                )  # fmt: skip


def _check_state(pipeline: str, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if "defaults" not in now:  # the state is what it is
        one = isinstance(before["state"], Mapping)
        sides = [""] if one else [f"{table} " for table in now["tables"]]
        olds, news = ([value] if one else value for value in (before["state"], now["state"]))
        for side, old, new in zip(sides, olds, news, strict=True):
            for column in [*old, *(column for column in new if column not in old)]:
                if old.get(column) != new.get(column):
                    difference = _difference(f"{side}state column '{column}'", name, old.get(column), new.get(column))
                    raise _changed(pipeline, name, difference)
        return
    defaults, kept = now.get("defaults", {}), before.get("defaults", {})
    for column, dtype in before["state"].items():
        found = now["state"].get(column)
        if found != dtype and (found is None or not widens(dtype, found)):
            cure = "declare it as it was; the function need not use it" if found is None else _AFRESH
            raise _changed(pipeline, name, _difference(f"state column '{column}'", name, dtype, found), cure)
        if column in kept and (column not in defaults or defaults[column] != kept[column]):
            stands = f"is {defaults[column]!r} now" if column in defaults else "is gone"
            raise _changed(
                pipeline, name, f"the default of '{column}' of '{name}' was {kept[column]!r}, and {stands}",
                f"give defaults={{'{column}': {kept[column]!r}}} as before: state written without the column still"
                " goes by it",
            )  # fmt: skip
    for column in now["state"]:
        if column not in before["state"] and column not in defaults:
            raise _changed(
                pipeline, name, f"state column '{column}' of '{name}' is new, and has no default",
                f"say what it is for keys that have state already: defaults={{'{column}': ...}}",
            )  # fmt: skip


def _difference(what: str, name: str, before: str | None, now: str | None) -> str:
    if now is None:
        return f"{what} of '{name}' is gone"
    return f"{what} of '{name}' is new" if before is None else f"{what} of '{name}' was {before}, and is {now} now"


def _changed(pipeline: str, operator: str, difference: str, cure: str = _AFRESH) -> PipelineChangedError:
    return PipelineChangedError(f"pipeline '{pipeline}' has changed: {difference}", cure=cure, operator=operator)
