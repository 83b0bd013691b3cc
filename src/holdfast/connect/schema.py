"""The schema as a user may write it: a Polars schema or a plain mapping of names to types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from holdfast.errors import WrongTypeError

__all__ = ["AnySchema", "as_schema"]

AnySchema = pl.Schema | Mapping[str, Any]


def as_schema(given: AnySchema, by: str) -> pl.Schema:
    """The schema, or an error that names the function it was given to."""
    try:
        return pl.Schema(given)
    except TypeError as error:
        raise WrongTypeError(
            f"{by}: the schema cannot be used: {error}",
            cure="give every column a complete Polars type, such as pl.Int64 or pl.Datetime('us')",
        ) from error
