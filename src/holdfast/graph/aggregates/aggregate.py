"""What an aggregate is: lift, combine and lower.

An aggregate never sees all rows of a window at once. *lift* turns the rows of a group into a partial state,
*combine* merges partial states (it must be associative), *lower* turns the final state into a value. Each is a set
of Polars expressions, so a user's own aggregate runs at the speed of the built-in ones.

    def weighted_mean(x, w):
        return hf.aggregate(
            lift={"xw": (pl.col(x) * pl.col(w)).sum(), "w": pl.col(w).sum()},
            combine=lambda s: {"xw": s.xw.sum(), "w": s.w.sum()},
            lower=lambda s: s.xw / s.w,
        )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from holdfast.errors import WrongTypeError

__all__ = ["Aggregate", "BoundAggregate", "Column", "Combine", "Counted", "Kernel", "Lift", "StateColumns", "aggregate"]

Kernel = Literal["sum", "min", "max"]
"""State columns that combine element by element can be assembled into sliding windows by array kernels."""

Counted = tuple[Literal["count", "sum"], str | None]
"""A state column that is a count of rows, or the sum of a column that has no nulls: it can be had by counting."""

Column = str | pl.Expr


class StateColumns:
    """The state columns of one aggregate as expressions: `s.total` is the column the lift called `total`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> pl.Expr:
        if name.startswith("__"):
            raise AttributeError(name)
        return pl.col(self._prefix + name)

    def __getitem__(self, name: str) -> pl.Expr:
        return pl.col(self._prefix + name)


Lift = Callable[[pl.Schema], Mapping[str, pl.Expr]]
Combine = Callable[[StateColumns], Mapping[str, pl.Expr]]
Lower = Callable[[StateColumns], pl.Expr]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A lift/combine/lower triple.

    `prepare` adds columns row by row before the lift. `kernels` names the state columns whose combine is a plain
    sum, min or max, `dense` those that are counts of rows or sums of plain columns. `ordered` says that the lift uses
    the hidden columns of order. `label` is for `explain`.
    """

    lift: Mapping[str, pl.Expr] | Callable[[pl.Schema], Mapping[str, pl.Expr]]
    combine: Combine
    lower: Lower
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    prepare: Mapping[str, pl.Expr] = field(default_factory=dict)
    dense: Mapping[str, Counted] = field(default_factory=dict)
    ordered: bool = False
    label: str = "aggregate"

    def bind(self, output: str, schema: pl.Schema) -> BoundAggregate:
        """Fix the names and types for an operator whose rows have `schema`."""
        prefix = f"{output}."
        lift = self.lift(schema) if callable(self.lift) else self.lift
        combined = self.combine(StateColumns(prefix))
        if set(combined) != set(lift):
            raise WrongTypeError(
                f"combine of '{output}' returns {sorted(combined)}, but lift makes {sorted(lift)}",
                cure="let combine return one expression for each state column that lift makes",
            )
        return BoundAggregate(
            output=output,
            prepare=tuple(expr.alias(name) for name, expr in self.prepare.items()),
            lift=tuple(expr.alias(prefix + name) for name, expr in lift.items()),
            combine=tuple(combined[name].alias(prefix + name) for name in lift),
            lower=self.lower(StateColumns(prefix)).alias(output),
            state=tuple(prefix + name for name in lift),
            kernels={prefix + name: kernel for name, kernel in self.kernels.items()},
            dense={prefix + name: counted for name, counted in self.dense.items()},
            ordered=self.ordered,
            label=self.label,
        )


@dataclass(frozen=True, slots=True)
class BoundAggregate:
    """An aggregate inside an operator: expressions with the operator's own column names."""

    output: str
    prepare: tuple[pl.Expr, ...]
    lift: tuple[pl.Expr, ...]
    combine: tuple[pl.Expr, ...]
    lower: pl.Expr
    state: tuple[str, ...]
    kernels: Mapping[str, Kernel]
    dense: Mapping[str, Counted]
    ordered: bool
    label: str


def aggregate(lift: Mapping[str, pl.Expr], combine: Combine, lower: Lower, *, label: str = "user") -> Aggregate:
    """Your own aggregate. The expressions of `lift` must reduce rows to one value per group."""
    if not lift:
        raise WrongTypeError("the aggregate has no state column", cure="give lift at least one expression")
    return Aggregate(dict(lift), combine, lower, label=label)
