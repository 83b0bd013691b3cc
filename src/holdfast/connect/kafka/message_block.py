"""Messages as a source wants them: many of one partition, in the order of offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

__all__ = ["HEADERS", "ClientBlock", "MessageBlock"]

HEADERS = pl.List(pl.Struct({"name": pl.String, "value": pl.Binary}))


class MessageBlock(Protocol):
    """Some messages."""

    def __len__(self) -> int: ...

    def values(self) -> Sequence[bytes | None]: ...

    def offset(self, index: int) -> int: ...

    def column(self, what: str) -> pl.Series:
        """What messages have besides their values: key, timestamp, headers, partition or offset."""


@dataclass(frozen=True, slots=True)
class ClientBlock:
    """Messages as the client library has them."""

    messages: Sequence[Any]

    def __len__(self) -> int:
        return len(self.messages)

    def values(self) -> Sequence[bytes | None]:
        return [message.value() for message in self.messages]

    def offset(self, index: int) -> int:
        return int(self.messages[index].offset())

    def column(self, what: str) -> pl.Series:
        if what == "key":
            return pl.Series("the key", [message.key() for message in self.messages], dtype=pl.Binary)
        if what == "timestamp":
            times = [message.timestamp() for message in self.messages]
            return pl.Series([at if kind else None for kind, at in times], dtype=pl.Int64).cast(pl.Datetime("ms"))
        if what == "headers":
            found = [
                [{"name": name, "value": value} for name, value in message.headers() or ()] for message in self.messages
            ]
            return pl.Series(found, dtype=HEADERS)
        if what == "partition":
            return pl.Series([message.partition() for message in self.messages], dtype=pl.Int32)
        return pl.Series([message.offset() for message in self.messages], dtype=pl.Int64)
