"""Errors of sinks: which one it was, and in which epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import HoldfastError, OperatorError
from holdfast.graph.nodes import SinkNode

__all__ = ["named"]


@contextmanager
def named(node: SinkNode, epoch: int | None = None) -> Iterator[None]:
    """Say which sink failed, in which epoch."""
    try:
        yield
    except HoldfastError as error:
        raise error.at(operator=node.name, epoch=epoch) from error.__cause__
    except Exception as error:
        raise OperatorError(
            f"the sink raised {type(error).__name__}: {error}",
            cure="mend the sink and start again; rows of an epoch that was not committed come again",
            operator=node.name,
            epoch=epoch,
        ) from error
