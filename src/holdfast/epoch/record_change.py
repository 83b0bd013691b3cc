"""The record of an epoch as a change of the record before it.

Most of a record is state, and an epoch changes little of it. So a commit writes a change, and only now and then a whole
record. Only `record_of` reads records: it starts with the last whole one and applies the changes since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.epoch.record import EpochRecord
from holdfast.errors import CorruptRecordError
from holdfast.formats import EPOCH_VERSION
from holdfast.meta import Commit
from holdfast.state.state_change import StateChange, changed_state, state_change
from holdfast.stored_json import JsonForm
from holdfast.versioned_message import EpochVersion

__all__ = ["RecordChain", "RecordChange", "RecordText", "record_of", "records_of"]

WHOLE_EPOCHS = 64
WHOLE_SECONDS = 1.0
"""A record is whole after so many epochs, or so much time."""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """`record` is the new record without its state, and with the routing of those operators only whose routing is
    another one; `state` is what has changed since the record of the epoch before."""

    record: EpochRecord
    state: StateChange
    version: EpochVersion = EPOCH_VERSION

    def encode(self) -> str:
        return _FORM.encode(self)

    @staticmethod
    def decode(text: str) -> RecordChange:
        return _FORM.decode(text)

    @staticmethod
    def between(before: EpochRecord, after: EpochRecord) -> RecordChange | None:
        """What leads from one record to the next; None where that would be no shorter than the whole."""
        state = state_change(before.state, after.state)
        if state is None:
            return None
        routing = {name: bounds for name, bounds in after.routing.items() if before.routing.get(name) != bounds}
        return RecordChange(replace(after, routing=routing, state={}), state)

    def after(self, before: EpochRecord) -> EpochRecord:
        """The record that it leads to."""
        routing = {**before.routing, **self.record.routing}
        return replace(self.record, routing=routing, state=changed_state(before.state, self.state))


_FORM = JsonForm(RecordChange, "the change of a record", EPOCH_VERSION)


@dataclass(frozen=True, slots=True)
class RecordText:
    """What a commit writes of a record: its text, and the epoch of the whole record that it goes back to, unless it is
    one itself."""

    text: str
    whole: int | None = None


@dataclass(slots=True)
class RecordChain:
    """The records that one run writes, one after the other, while no other run writes any.

    A run that shares the right to commit, or has rewritten a record, begins again with a whole one.
    """

    whole: int | None = None
    """The epoch of the last whole record of the chain."""
    _epoch: int = 0
    _record: EpochRecord | None = None
    _whole_at: float = 0.0

    def text(self, epoch: int, record: EpochRecord, now: float) -> RecordText:
        """What the commit of an epoch is to write."""
        if self._record is not None and self.whole is not None and self._epoch == epoch - 1:
            due = epoch - self.whole >= WHOLE_EPOCHS or not 0 <= now - self._whole_at < WHOLE_SECONDS
            change = None if due else RecordChange.between(self._record, record)
            if change is not None:
                return RecordText(change.encode(), self.whole)
        return RecordText(record.encode())

    def wrote(self, epoch: int, record: EpochRecord, text: RecordText, now: float) -> None:
        """The commit counts."""
        self._epoch, self._record = epoch, record
        if text.whole is None:
            self.whole, self._whole_at = epoch, now

    def end(self) -> None:
        """The next record is written whole."""
        self.whole = self._record = None


def record_of(commit: Commit) -> EpochRecord:
    """The whole record of a commit."""
    first, *changes = (*commit.since, commit.record)
    record = EpochRecord.decode(first)
    for change in changes:
        record = _changed(commit, record, change)
    return record


def records_of(commits: Iterable[Commit]) -> dict[int, EpochRecord]:
    """The whole records of several commits, oldest first, each of them made once."""
    found: dict[int, EpochRecord] = {}
    for commit in sorted(commits, key=lambda commit: commit.epoch):
        before = found.get(commit.epoch - 1) if commit.since else None
        found[commit.epoch] = record_of(commit) if before is None else _changed(commit, before, commit.record)
    return found


def _changed(commit: Commit, before: EpochRecord, change: str) -> EpochRecord:
    try:
        return RecordChange.decode(change).after(before)
    except CorruptRecordError as error:
        raise error.at(epoch=commit.epoch) from error.__cause__
