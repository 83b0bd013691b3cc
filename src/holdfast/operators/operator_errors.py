"""Errors out of an operator's own code: each gets the operator's name and the epoch, and says what can be done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

from holdfast.errors import HoldfastError, OperatorError

__all__ = ["named_errors", "operator_error"]


@contextmanager
def named_errors(operator: str, epoch: int | None) -> Iterator[None]:
    """Whatever is raised inside is the operator's: a typed error gets its place, any other becomes an OperatorError.

    Errors of the system are left alone: the task may well succeed when it is tried again.
    """
    try:
        yield
    except OSError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        raise operator_error(operator, error, epoch) from error


def operator_error(operator: str, cause: BaseException, epoch: int | None) -> HoldfastError:
    """The typed error behind an error, as that of this operator; any other as an OperatorError."""
    inner = cause
    while (
        not isinstance(inner, HoldfastError) and inner.__cause__ is not None and isinstance(inner.__cause__, Exception)
    ):
        inner = inner.__cause__
    if isinstance(inner, HoldfastError):
        return inner.at(operator=operator, epoch=epoch)
    return OperatorError(
        f"{type(inner).__name__}: {inner}",
        cure="fix the expression or function, or filter out the rows it cannot process; the epoch was not committed "
        "and will be run again",
        operator=operator,
        epoch=epoch,
    )
