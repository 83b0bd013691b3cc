"""About how many distinct values there are, by HyperLogLog."""

from __future__ import annotations

import polars as pl

from holdfast.errors import WrongTypeError
from holdfast.graph.aggregates.aggregate import Aggregate, StateColumns
from holdfast.hidden_columns import HASH
from holdfast.state.position import key_positions, supports_key

__all__ = ["approx_distinct"]

_HLL_BITS = 12
_HLL_REGISTERS = 1 << _HLL_BITS


def approx_distinct(column: str) -> Aggregate:
    """The approximate number of distinct non-null values: HyperLogLog, 4,096 registers, standard error 1.6 %.

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
