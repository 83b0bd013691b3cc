"""The shape of a pipeline: what must stay the same for its state to make sense to a later run.

A shape also says what is needed to read state without the pipeline's code: the tables of each operator, and the values
of columns that were added. Those parts are not compared; they follow from the parts that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.errors import PipelineChangedError
from holdfast.graph.nodes import Stateful
from holdfast.operators.registry import operator_of
from holdfast.plan.program import Program
from holdfast.state.dtypes import widens
from holdfast.state.pipeline_shape import ColumnTypes, OperatorShape, PipelineShape, SourceShape, TableShape

__all__ = ["check_shape", "shape_of_program"]

_AFRESH = "give the pipeline another name or choose another --store to start from the beginning, or undo the change"


def shape_of_program(program: Program, partitions: int | None = None) -> PipelineShape:
    """Sources with their time, and stateful operators with all that decides what their state means.

    With `partitions`, the number that operators have by default, the shape says how many each was declared to have.
    """
    times = {node.name: node.time for node in program.sources}
    return PipelineShape(
        {name: SourceShape(None if time is None else [time.column, time.unit]) for name, time in times.items()},
        {node.name: _shape_of(node, program, partitions) for node in program.stateful},
    )


def _shape_of(node: Stateful, program: Program, partitions: int | None) -> OperatorShape:
    operator, inputs = operator_of(node), program.inputs_of(node)
    return OperatorShape(
        kind=type(node).__name__,
        keys={key: str(inputs[0][key]) for key in node.keys},
        **msgspec.structs.asdict(operator.meaning(inputs)),
        tables={
            table.name: TableShape(
                table.keyed, {name: str(dtype) for name, dtype in table.schema.items()}, tuple(table.filled)
            )
            for table in operator.tables(inputs)
        },
        partitions=None if partitions is None else (node.partitions or partitions) if node.keys else 1,
    )


def check_shape(pipeline: str, before: PipelineShape | None, now: PipelineShape) -> None:
    """Refuse to run on state that the pipeline, as it is now, would misread."""
    if before is None:
        return
    _check_names(pipeline, "source", before.sources, now.sources)
    for name, source in before.sources.items():
        _check_same(pipeline, name, [("time", source.time, now.sources[name].time)])
    _check_names(pipeline, "operator", before.operators, now.operators)
    for name, shape in before.operators.items():
        _check_same(pipeline, name, _compared(shape, now.operators[name]))
        _check_state(pipeline, name, shape, now.operators[name])


def _check_names(pipeline: str, what: str, before: Mapping[str, object], now: Mapping[str, object]) -> None:
    for name in before:
        if name not in now:
            raise _changed(
                pipeline, name, f"{what} '{name}' is gone, but the store has its state",
                f"if it was renamed, give the new one was='{name}'; else {_AFRESH}",
            )  # fmt: skip
    for name in now:
        if name not in before:
            raise _changed(
                pipeline, name, f"{what} '{name}' is new, but the store has no state of it",
                f"if it was renamed, give it was='old name'; else {_AFRESH}",
            )  # fmt: skip


def _compared(before: OperatorShape, now: OperatorShape) -> Iterator[tuple[str, object, object]]:
    """What must be the same, as far as the store knows it."""
    yield "kind", before.kind, now.kind
    yield "keys", before.keys, now.keys
    for what, was, found in (
        ("window", before.window, now.window),
        ("time-to-live", before.time_to_live, now.time_to_live),
        ("timers", before.timers, now.timers),
    ):
        if was is not None:
            yield what, was, found


def _check_same(pipeline: str, name: str, compared: Iterable[tuple[str, object, object]]) -> None:
    for what, was, found in compared:
        if was != found:
            raise _changed(pipeline, name, f"{what} of '{name}' was {was}, now it is {found}")


def _check_state(pipeline: str, name: str, before: OperatorShape, now: OperatorShape) -> None:
    if now.defaults is not None:
        _check_columns(pipeline, name, before, now, now.defaults)
        return
    # The state is what it is.
    olds, news = _sides(before), _sides(now)
    sides = [""] if isinstance(before.state, Mapping) else [f"{table} " for table in now.tables or {}]
    for side, old, new in zip(sides, olds, news, strict=True):
        for column in [*old, *(column for column in new if column not in old)]:
            if old.get(column) != new.get(column):
                difference = _difference(f"{side}state column '{column}'", name, old.get(column), new.get(column))
                raise _changed(pipeline, name, difference)


def _sides(shape: OperatorShape) -> tuple[ColumnTypes, ...]:
    return (shape.state,) if isinstance(shape.state, Mapping) else shape.state


def _check_columns(
    pipeline: str, name: str, before: OperatorShape, now: OperatorShape, defaults: Mapping[str, object]
) -> None:
    """Columns may be added, if they have defaults, and made wider."""
    [was], [state], kept = _sides(before), _sides(now), before.defaults or {}
    for column, dtype in was.items():
        found = state.get(column)
        if found != dtype and (found is None or not widens(dtype, found)):
            cure = "declare it as it was; the function need not use it" if found is None else _AFRESH
            raise _changed(pipeline, name, _difference(f"state column '{column}'", name, dtype, found), cure)
        if column in kept and (column not in defaults or defaults[column] != kept[column]):
            stands = f"now it is {defaults[column]!r}" if column in defaults else "and is gone"
            raise _changed(
                pipeline, name, f"the default of '{column}' of '{name}' was {kept[column]!r}, {stands}",
                f"give defaults={{'{column}': {kept[column]!r}}} as before: state written without the column still"
                " uses it",
            )  # fmt: skip
    for column in state:
        if column not in was and column not in defaults:
            raise _changed(
                pipeline, name, f"state column '{column}' of '{name}' is new, but has no default",
                f"set its value for keys that already have state: defaults={{'{column}': ...}}",
            )  # fmt: skip


def _difference(what: str, name: str, before: str | None, now: str | None) -> str:
    if now is None:
        return f"{what} of '{name}' is gone"
    return f"{what} of '{name}' is new" if before is None else f"{what} of '{name}' was {before}, now it is {now}"


def _changed(pipeline: str, operator: str, difference: str, cure: str = _AFRESH) -> PipelineChangedError:
    return PipelineChangedError(f"pipeline '{pipeline}' has changed: {difference}", cure=cure, operator=operator)
