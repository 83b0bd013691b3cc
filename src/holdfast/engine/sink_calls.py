"""Calls of a sink's methods: each has a deadline, and an error names the sink and the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import polars as pl

from holdfast.epoch.deadline import Deadlines
from holdfast.errors import HoldfastError, OperatorError
from holdfast.graph.nodes import SinkNode

__all__ = ["SinkCalls"]

T = TypeVar("T")


class SinkCalls:
    """How the driver calls sinks."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines

    def call(self, node: SinkNode, epoch: int | None, asked: str, function: Callable[..., T], *given: Any) -> T:
        """Call a method of the node's sink. `asked` says what for, e.g. "to publish"."""
        try:
            return self._deadlines.call(node.name, epoch, f"the sink, which was asked {asked},", function, *given)
        except HoldfastError as error:
            raise error.at(operator=node.name, epoch=epoch) from error.__cause__
        except (Exception, pl.exceptions.PanicException) as error:
            raise OperatorError(
                f"the sink raised {type(error).__name__}: {error}",
                cure="fix the sink and start again; the rows of an epoch that was not committed are delivered again",
                operator=node.name,
                epoch=epoch,
            ) from error
