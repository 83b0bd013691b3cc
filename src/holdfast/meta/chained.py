"""Records that are written as changes: which texts of the `epochs` table make up the record of an epoch.

The text of a change begins with the number of the epoch whose record is whole; a whole record is a JSON object and
begins as one. A record in between may have been written again, whole: then the texts begin with that one.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import CorruptRecordError

__all__ = ["as_change", "chain_of", "split_change", "whole_before"]


def as_change(text: str, whole: int) -> str:
    """The text of a change, as it is stored."""
    return f"{whole} {text}"


def whole_before(stored: str) -> int | None:
    """The epoch of the whole record that a stored text goes back to; None if it is whole."""
    return None if stored.startswith("{") else int(stored[: stored.index(" ")])


def split_change(stored: str) -> str:
    """The JSON of a stored text."""
    return stored if stored.startswith("{") else stored[stored.index(" ") + 1 :]


def chain_of(pipeline: str, epoch: int, stored: Mapping[int, str]) -> tuple[str, ...]:
    """The texts before that of an epoch which its record is made of, the whole one first; none if it is whole."""
    found: list[str] = []
    number = epoch
    while whole_before(stored[number]) is not None:
        number -= 1
        if number not in stored:
            raise CorruptRecordError(
                f"the record of epoch {epoch} of pipeline '{pipeline}' needs that of epoch {number}, which is missing",
                cure="restore the meta store from a backup, together with the files of the store; nothing was changed",
                epoch=epoch,
            )
        found.append(split_change(stored[number]))
    return tuple(reversed(found))
