"""Aggregates by lift, combine and lower.

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
from holdfast.graph.row_wise import check_row_by_row
from holdfast.hidden_columns import HASH, ROW_SEQ, ROW_TIME
from holdfast.state.position import key_positions, supports_key

__all__ = [
    "Aggregate",
    "BoundAggregate",
    "Kernel",
    "StateColumns",
    "aggregate",
    "approx_distinct",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "std",
    "sum",
    "top_k",
    "var",
]

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
    """An aggregate of your own. The expressions of `lift` must reduce rows to one value per group."""
    if not lift:
        raise WrongTypeError("the aggregate has no state column", cure="give lift at least one expression")
    return Aggregate(dict(lift), combine, lower, label=label)


def _expr(column: Column) -> pl.Expr:
    if isinstance(column, str):
        return pl.col(column)
    if not isinstance(column, pl.Expr):
        raise WrongTypeError(
            f"an aggregate of {column!r:.60}", cure="give a column's name or a Polars expression: hf.sum('amount')"
        )
    check_row_by_row([column], reduced=True)
    return column


def _counted(column: Column | None, **kinds: Literal["count", "sum"]) -> dict[str, Counted]:
    """For state columns over a plain column or all rows; an expression has to be computed, so it is not counted."""
    if isinstance(column, pl.Expr):
        return {}
    return {name: (kind, column) for name, kind in kinds.items()}


def _named(column: Column) -> str:
    return column if isinstance(column, str) else str(column)


_Lift = Callable[[pl.Schema], Mapping[str, pl.Expr]]


def _typed(
    what: str, column: Column, fits: Callable[[pl.DataType], bool], lift: Callable[[pl.DataType], Mapping[str, pl.Expr]]
) -> _Lift:
    """The lift of an aggregate that takes values of certain types, and refuses others where it is declared."""

    def typed(schema: pl.Schema) -> Mapping[str, pl.Expr]:
        dtype = pl.DataFrame(schema=schema).select(_expr(column)).to_series().dtype
        if not fits(dtype):
            raise WrongTypeError(f"{what} of {_named(column)}, which is {dtype}", cure=_cure(what, column, dtype))
        return lift(dtype)

    return typed


def _cure(what: str, column: Column, dtype: pl.DataType) -> str:
    """How to come from a value that an aggregate cannot take to one that it can."""
    given = f"pl.col('{column}')" if isinstance(column, str) else "(...)"
    each = what if what in ("sum", "min", "max") else "mean"
    if isinstance(dtype, pl.Struct):
        inner = dtype.fields[0].name if dtype.fields else "x"
        return f"name a field of it: hf.{what}({given}.struct.field('{inner}'))"
    if isinstance(dtype, pl.List):
        return f"reduce each list first, e.g. hf.{what}({given}.list.{each}()), or explode the column before the window"
    if isinstance(dtype, pl.Array):
        return f"reduce each array first, e.g. hf.{what}({given}.arr.{each}()), or explode the column before the window"
    if isinstance(dtype, pl.Duration):
        return f"make it a number: hf.{what}({given}.dt.total_microseconds())"
    if dtype.is_temporal():
        return f"make it a number: hf.{what}({given}.to_physical())"
    if dtype == pl.String:
        return f"make it a number, null where it is none: hf.{what}({given}.cast(pl.Float64, strict=False))"
    return "take a column of numbers"


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.Boolean


def _has_order(dtype: pl.DataType) -> bool:
    return not dtype.is_nested() and dtype != pl.Object


def count(column: Column | None = None) -> Aggregate:
    """The number of rows, or of values of a column that are not null."""
    lift = pl.len() if column is None else _expr(column).count()
    return Aggregate(
        {"n": lift.cast(pl.Int64)},
        lambda s: {"n": s.n.sum()},
        lambda s: s.n,
        {"n": "sum"},
        dense=_counted(column, n="count"),
        label="count" if column is None else f"count({_named(column)})",
    )


def sum(column: Column) -> Aggregate:
    """The sum of the values that are not null; 0 where there are none.

    Integers are summed in 64 bits (Polars alone would sum an Int32 column in 32), floats in Float64, decimals exactly,
    with 38 digits.
    """

    def lift(dtype: pl.DataType) -> dict[str, pl.Expr]:
        return {"total": _expr(column).cast(_wide(dtype)).sum()}

    return Aggregate(
        _typed("sum", column, lambda dtype: _is_number(dtype) or isinstance(dtype, pl.Duration), lift),
        lambda s: {"total": s.total.sum()},
        lambda s: s.total,
        {"total": "sum"},
        dense=_counted(column, total="sum"),
        label=f"sum({_named(column)})",
    )


def _wide(dtype: pl.DataType) -> pl.DataType:
    """The type in which values of `dtype` are summed."""
    if isinstance(dtype, pl.Decimal):
        return pl.Decimal(38, dtype.scale)
    if isinstance(dtype, pl.Duration) or dtype in (pl.UInt64, pl.Int128, pl.UInt128):
        return dtype
    return pl.Float64() if dtype.is_float() else pl.Int64()


def mean(column: Column) -> Aggregate:
    """The mean of the values that are not null; null where there are none."""
    return Aggregate(
        _typed(
            "mean",
            column,
            _is_number,
            lambda _: {"total": _expr(column).cast(pl.Float64).sum(), "n": _expr(column).count().cast(pl.Int64)},
        ),
        lambda s: {"total": s.total.sum(), "n": s.n.sum()},
        lambda s: pl.when(s.n > 0).then(s.total / s.n),
        {"total": "sum", "n": "sum"},
        dense=_counted(column, total="sum", n="count"),
        label=f"mean({_named(column)})",
    )


def min(column: Column) -> Aggregate:
    """The least value that is not null; null where there is none."""
    return Aggregate(
        _typed("min", column, _has_order, lambda _: {"least": _expr(column).min()}),
        lambda s: {"least": s.least.min()},
        lambda s: s.least,
        {"least": "min"},
        label=f"min({_named(column)})",
    )


def max(column: Column) -> Aggregate:
    """The greatest value that is not null; null where there is none."""
    return Aggregate(
        _typed("max", column, _has_order, lambda _: {"greatest": _expr(column).max()}),
        lambda s: {"greatest": s.greatest.max()},
        lambda s: s.greatest,
        {"greatest": "max"},
        label=f"max({_named(column)})",
    )


def _moments(what: str, column: Column) -> tuple[_Lift, Combine]:
    """Count, mean and sum of squared differences: combined without the cancellation of sum-of-squares."""
    value = _expr(column).cast(pl.Float64)
    middle = value.mean()
    lift = {
        "n": value.count().cast(pl.Int64),
        "mean": middle.fill_null(0.0),
        "m2": ((value - middle) ** 2).sum(),
    }

    def combine(s: StateColumns) -> dict[str, pl.Expr]:
        n = s.n.sum()
        middle = pl.when(n > 0).then((s.n * s.mean).sum() / n).otherwise(0.0)
        return {"n": n, "mean": middle, "m2": s.m2.sum() + (s.n * (s.mean - middle) ** 2).sum()}

    return _typed(what, column, _is_number, lambda _: lift), combine


def var(column: Column, ddof: int = 1) -> Aggregate:
    """The variance with `ddof` degrees taken off; null where there are not more than `ddof` values."""
    lift, combine = _moments("var", column)
    return Aggregate(
        lift, combine, lambda s: pl.when(s.n > ddof).then(s.m2 / (s.n - ddof)), label=f"var({_named(column)})"
    )


def std(column: Column, ddof: int = 1) -> Aggregate:
    """The standard deviation; see `var`."""
    lift, combine = _moments("std", column)
    return Aggregate(
        lift,
        combine,
        lambda s: pl.when(s.n > ddof).then((s.m2 / (s.n - ddof)).sqrt()),
        label=f"std({_named(column)})",
    )


def _edge(column: Column, descending: bool, label: str) -> Aggregate:
    order = [ROW_TIME, *ROW_SEQ]
    value = _expr(column)

    def pick(values: pl.Expr, keys: list[pl.Expr]) -> pl.Expr:
        return values.sort_by(keys, descending=descending).first()

    row_keys = [pl.col(name) for name in order]

    def combine(s: StateColumns) -> dict[str, pl.Expr]:
        keys = [s.time, s.seq0, s.seq1]
        columns = {"value": s.value, "time": s.time, "seq0": s.seq0, "seq1": s.seq1}
        return {name: pick(column, keys) for name, column in columns.items()}

    lift = {"value": pick(value, row_keys)}
    for name, key in zip(("time", "seq0", "seq1"), row_keys, strict=True):
        lift[name] = pick(key, row_keys)
    return Aggregate(lift, combine, lambda s: s.value, ordered=True, label=label)


def first(column: Column) -> Aggregate:
    """The value of the row with the earliest event time; of several, the one that arrived first."""
    return _edge(column, False, f"first({_named(column)})")


def last(column: Column) -> Aggregate:
    """The value of the row with the latest event time; of several, the one that arrived last."""
    return _edge(column, True, f"last({_named(column)})")


def top_k(column: Column, k: int, *, by: Column | None = None) -> Aggregate:
    """The `k` greatest values in descending order, as a list; with `by`, the values that go with the greatest `by`.

    Nulls are left out. Equal `by` are ordered by the value itself, so that the result does not depend on arrival.
    """
    if k <= 0:
        raise WrongTypeError(f"top_k with k={k}", cure="give a k of at least 1")
    value = _expr(column)
    rank = value if by is None else _expr(by)

    kept = value.is_not_null() & rank.is_not_null()
    pairs = pl.struct(rank.alias("rank"), value.alias("value")).filter(kept)

    def best(candidates: pl.Expr) -> pl.Expr:
        return candidates.sort(descending=True).head(k).implode()

    return Aggregate(
        {"best": best(pairs)},
        lambda s: {"best": best(s.best.explode().drop_nulls())},
        lambda s: s.best.list.eval(pl.element().struct.field("value")),
        label=f"top_{k}({_named(column)})",
    )


_HLL_BITS = 12
_HLL_REGISTERS = 1 << _HLL_BITS


def approx_distinct(column: str) -> Aggregate:
    """About how many distinct values that are not null: HyperLogLog, 4,096 registers, standard error 1.6 %.

    A sketch is a list of the registers that are set, so small groups stay small.
    """
    if not isinstance(column, str):
        raise WrongTypeError(
            f"approx_distinct of {column!s:.60}",
            cure="name a column: .with_columns(x=...) before the window, then hf.approx_distinct('x')",
        )
    hashed = f"{HASH}_{column}"
    rest = 64 - _HLL_BITS
    position = pl.col(column).map_batches(_positions, return_dtype=pl.UInt64, is_elementwise=True)

    def keep_greatest(packed: pl.Expr) -> pl.Expr:
        ordered = packed.drop_nulls().unique().sort()
        return ordered.filter((ordered // 64).ne_missing(ordered.shift(-1) // 64)).implode()

    register = (pl.col(hashed) // (1 << rest)).cast(pl.UInt32)
    # The low bits, moved to the top with a sentinel below them, so that the zeros counted are at most `rest`.
    tail = pl.col(hashed) % (1 << rest) * (1 << _HLL_BITS) + ((1 << _HLL_BITS) - 1)
    rho = tail.bitwise_leading_zeros() + 1
    packed = pl.when(pl.col(column).is_not_null()).then(register * 64 + rho.cast(pl.UInt32))

    def lower(s: StateColumns) -> pl.Expr:
        m = float(_HLL_REGISTERS)
        set_registers = s.registers.list.len().cast(pl.Float64)
        inverse = pl.lit(2.0).pow(-(pl.element() % 64).cast(pl.Float64))
        harmonic = s.registers.list.eval(inverse).list.sum() + (m - set_registers)
        raw = 0.7213 / (1 + 1.079 / m) * m * m / harmonic
        unset = m - set_registers
        linear = m * (m / unset).log()
        return pl.when((raw <= 2.5 * m) & (unset > 0)).then(linear).otherwise(raw).round().cast(pl.Int64)

    def lift(schema: pl.Schema) -> dict[str, pl.Expr]:
        if column in schema and not supports_key(schema[column]):
            raise WrongTypeError(
                f"approx_distinct of {column}, which is {schema[column]}",
                cure="count values of an integer (up to 64 bits), float, string, binary, boolean or date/time column; "
                "with_columns can make one",
            )
        return {"registers": keep_greatest(packed)}

    return Aggregate(
        lift,
        lambda s: {"registers": keep_greatest(s.registers.explode())},
        lower,
        prepare={hashed: position},
        label=f"approx_distinct({column})",
    )


def _positions(values: pl.Series) -> pl.Series:
    return pl.Series(values.name, key_positions([values]))
