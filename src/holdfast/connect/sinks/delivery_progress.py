"""How far a writer has come in a database, kept there with its rows, and what follows from it for an epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.connect.base import Position
from holdfast.errors import OutputConflictError

__all__ = ["PROGRESS_TABLE", "DeliveryProgress", "progress_of"]

PROGRESS_TABLE = "holdfast_progress"
_CURE = f"give another writer=..., write to another database, or remove the rows and the entry in {PROGRESS_TABLE}"


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """The last epoch that is in the database, and the vector of source positions that it depends on."""

    table: str
    writer: str
    epoch: int
    vector: Mapping[str, Position]

    def check_ahead(self, committed: int) -> None:
        """Refuse a database that is ahead: it holds results of another history of the pipeline."""
        if self.epoch > committed + 1:
            raise OutputConflictError(
                f"table '{self.table}' has results up to epoch {self.epoch} by '{self.writer}'; this store has"
                f" committed {committed}",
                cure=_CURE,
            )

    def has(self, epoch: int, vector: Mapping[str, Position]) -> bool:
        """Whether an epoch is there; one that comes again must depend on the same rows."""
        if epoch < self.epoch:
            return True  # another host of the pipeline is further; what is of another history was refused at the start
        if epoch > self.epoch:
            return False
        if self.vector != vector:
            raise OutputConflictError(
                f"table '{self.table}' has epoch {self.epoch} of '{self.writer}', which depends on {self.vector};"
                f" epoch {epoch} depends on {vector}",
                cure="another process writes under this name: give another writer=..., or write to another table",
            )
        return True


def progress_of(
    table: str, writer: str, where: str, found: tuple[int, str, str | None] | None, store: str
) -> DeliveryProgress | None:
    """From the row of a writer: epoch, vector and store. What another store has written under its name is refused: its
    epochs have the same numbers and other rows."""
    if found is None:
        return None
    epoch, vector, of = found
    if of not in (None, store):
        raise OutputConflictError(
            f"'{writer}' writes to {where} from store {of}; this is store {store}",
            cure=_CURE,
        )
    return DeliveryProgress(table, writer, epoch, json.loads(vector))
