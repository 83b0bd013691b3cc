"""What the process of a pipeline and that of its receivers say to each other: an order, and words in answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pyspark import cloudpickle

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.plan.cuts import Receiving
from holdfast.stored_json import JsonForm

__all__ = ["STOP", "ReceiverOrder", "ReceiverWord", "raised", "told"]

STOP = b"stop\n"


@dataclass(frozen=True, slots=True)
class ReceiverOrder:
    """What is to be received, and for which store."""

    items: tuple[Receiving, ...]
    store: Path
    meta: str | None
    sync: bool

    def encode(self) -> bytes:
        """With its length before it. It has a program's functions in it, and a database's password: so it goes through
        a pipe and nowhere else."""
        body: bytes = cloudpickle.dumps(self)  # type: ignore[no-untyped-call]
        return len(body).to_bytes(8, "little") + body

    @staticmethod
    def read(pipe: BinaryIO) -> ReceiverOrder:
        order = cloudpickle.loads(pipe.read(int.from_bytes(pipe.read(8), "little")))
        assert isinstance(order, ReceiverOrder)
        return order


@dataclass(frozen=True, slots=True)
class ReceiverWord:
    """What the process says: the p-stream that has got rows, or where its receivers listen, by source and protocol, or
    the kind of an error, its problem, its cure and its operator."""

    appended: str | None = None
    addresses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    failed: tuple[str, str, str, str | None] | None = None

    def encode(self) -> bytes:
        return _WORD.encode(self).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> ReceiverWord:
        return _WORD.decode(line)


_WORD = JsonForm(ReceiverWord, "a word of the receivers")


def told(error: Exception) -> ReceiverWord:
    """The word that says why it cannot go on."""
    if isinstance(error, HoldfastError):
        return ReceiverWord(failed=(type(error).__name__, error.problem, error.cure, error.operator))
    cure = "this is a bug in Holdfast; please report it"
    return ReceiverWord(failed=("HoldfastError", f"the receivers failed: {type(error).__name__}: {error}", cure, None))


def raised(failed: tuple[str, str, str, str | None]) -> HoldfastError:
    """The error that was told."""
    kind, problem, cure, operator = failed
    found: type[HoldfastError] = getattr(errors, kind, HoldfastError)
    return found(problem, cure=cure, operator=operator)
