"""What the process of a pipeline and that of its receivers say to each other: an order, and words in answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pyspark import cloudpickle

from holdfast.epoch.sent_error import SentError
from holdfast.errors import HoldfastError
from holdfast.formats import MESSAGE_VERSION
from holdfast.plan.cuts import Receiving
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import VersionedMessage

__all__ = ["STOP", "ReceiverOrder", "ReceiverWord", "told"]

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


class ReceiverWord(VersionedMessage, frozen=True):
    """What the process says: the p-stream that has got rows, or where its receivers listen, by source and protocol, or
    the error for which it cannot go on."""

    appended: str | None = None
    addresses: Mapping[str, Mapping[str, str]] = {}
    failed: SentError | None = None

    def encode(self) -> bytes:
        return _WORD.encode(self).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> ReceiverWord:
        return _WORD.decode(line)


_WORD = JsonForm(ReceiverWord, "a word of the receivers", MESSAGE_VERSION)


def told(error: Exception) -> ReceiverWord:
    """The word that says why it cannot go on."""
    if isinstance(error, HoldfastError):
        return ReceiverWord(failed=SentError.of(error))
    cure = "this is a bug in Holdfast; please report it"
    failed = HoldfastError(f"the receivers failed: {type(error).__name__}: {error}", cure=cure)
    failed.__cause__ = error
    return ReceiverWord(failed=SentError.of(failed))
