"""What simulated hosts write about epochs, judged at every transaction of the store.

It reads the tables by itself and looks at the disk, without the code under test:

- who plans or commits has a seat that allows it;
- a plan does not change, and an epoch is committed as planned, and with the same files for ever;
- a record that is written as a change stands next to the one that it changes, which stays as it is;
- the state from which the fragment would begin again is on the stable tier, synced, and the plans of all epochs since
  are there; so is the state of every retained epoch that is said to lie on that tier.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from holdfast_lab.simulate.disk import Disk
from holdfast_lab.simulate.scheduler import Process

__all__ = ["CommitAccount"]

Text = Mapping[str, Any]


class CommitAccount:
    """Of one fragment. `state` is the directory of the stable tier, `retain` how many epochs are kept, `violate` tells
    what must not be. The store may know more epochs: only the primary forgets them."""

    def __init__(
        self,
        fragment: str,
        connection: Connection,
        disk: Disk,
        state: Path,
        retain: int,
        incarnation: Callable[[Process], int | None],
        violate: Callable[[str], None],
    ) -> None:
        self._fragment = fragment
        self._incarnation = incarnation
        self._connection = connection
        self._disk = disk
        self._state = str(state)
        self._retain = retain
        self._violate = violate
        self._texts: dict[int, tuple[str, str | None]] = {}
        self._plans: dict[int, Text] = {}
        self._records: dict[int, Text] = {}
        self._receipts: dict[int, Any] = {}
        self._needed: dict[str, tuple[int, str]] = {}
        """P-units that must be there, each with its size and with who needs it."""

    def look(self, process: Process | None) -> None:
        """A transaction was done, by this process."""
        found: dict[int, tuple[str, str | None]] = {
            epoch: (plan, record)
            for epoch, plan, record in self._connection.execute(
                "SELECT epoch, plan, record FROM epochs WHERE pipeline = ? ORDER BY epoch", (self._fragment,)
            )
        }
        if found != self._texts:
            self._check_seat(process)
            for epoch, texts in found.items():
                before = self._records.get(epoch)
                if self._texts.get(epoch) != texts:
                    self._check_epoch(epoch, *texts)
                following = found.get(epoch + 1, ("", None))
                stays = following == self._texts.get(epoch + 1)
                if stays and _is_change(following[1]) and self._records[epoch] != before:
                    self._violate(f"the record of epoch {epoch} is another one, and that of the next changes it")
                if _is_change(texts[1]) and epoch - 1 not in found:
                    self._violate(f"epoch {epoch - 1} is forgotten, and the record of the next changes it")
            self._texts = found
            self._check_durable()
        for name, (_, what) in self._needed.items():
            if not any(os.path.exists(f"{self._state}/{file}") for file, _ in _holding(name, 0)):
                self._violate(f"{name} is gone, and is {what}")

    def _check_seat(self, process: Process | None) -> None:
        if process is None:
            return
        query = "SELECT seats, sharing FROM replicas WHERE fragment = ?"
        found = self._connection.execute(query, (self._fragment,)).fetchone()
        if found is None:
            return  # nobody else is there: a lease tells who may
        seats, sharing = found
        primary, secondary = (json.loads(seats)[seat] for seat in ("primary", "secondary"))
        who = [process.host, self._incarnation(process)]
        if primary is None or primary[:2] == who or (sharing and secondary is not None and secondary[:2] == who):
            return
        self._violate(f"{process.name} plans or commits, and has no seat that allows it")

    def _check_epoch(self, epoch: int, plan_text: str, record_text: str | None) -> None:
        plan = _opened(plan_text)
        before = self._plans.setdefault(epoch, plan)
        if before != plan and before["generation"] == plan["generation"]:  # a repair makes a new one
            self._violate(f"epoch {epoch} was planned twice")
        self._plans[epoch] = plan
        if record_text is None:
            return
        record = _opened(record_text)
        if _is_change(record_text):
            record = _changed(self._records[epoch - 1], record)
        self._records[epoch] = record
        if record["positions"] != plan["positions"]:
            self._violate(f"epoch {epoch} was committed at {record['positions']}, and planned to {plan['positions']}")
        if record["receipts"] and self._receipts.setdefault(epoch, record["receipts"]) != record["receipts"]:
            self._violate(f"epoch {epoch} was committed twice, with different files")

    def _check_durable(self) -> None:
        """What must be there from now on, and is durable."""
        before = self._needed
        self._needed = {name: (size, what) for name, size, what in self._needs()}
        for name, (size, what) in self._needed.items():
            holding = _holding(name, size)
            if name not in before and not any(
                self._disk.is_durable(f"{self._state}/{f}", least) for f, least in holding
            ):
                self._violate(f"{name} is not synced, and is {what}")

    def _needs(self) -> Iterator[tuple[str, int, str]]:
        committed = sorted(epoch for epoch, (_, record) in self._texts.items() if record is not None)
        for epoch in committed[-self._retain :]:
            record = self._records[epoch]
            if record["base"] is None:
                yield from ((*unit, f"state of epoch {epoch}") for unit in _units(record))
        base = self._records[committed[-1]]["base"] if committed else None
        if base is None:
            return
        begin = int(base["epoch"])
        for epoch in range(max(1, begin), committed[-1]):
            if epoch not in self._texts:
                self._violate(f"epoch {epoch} is forgotten, and is to be run again after epoch {begin}")
        if begin in self._texts and not base["empty"] and not base["eventual"]:
            yield from (
                (*unit, f"state to begin again from, of epoch {begin}") for unit in _units(self._records[begin])
            )


def _opened(text: str) -> Text:
    """What the store has after a checksum, and after the number of a whole record if it is a change."""
    found: Text = json.loads(text[text.index("{") :])
    return found


def _is_change(text: str | None) -> bool:
    return text is not None and not text.partition(" ")[2].startswith("{")


def _changed(before: Text, change: Text) -> Text:
    """The record after a change."""
    state = {name: list(parts) for name, parts in before["state"].items()}
    for name, parts in change["state"].items():
        for part, changed in parts.items():
            old = state[name][int(part)]
            pieces: list[Any] = []
            for item in changed["pieces"]:
                pieces += old["pieces"][item[0] : item[1]] if isinstance(item, list) else [item]
            state[name][int(part)] = {**old, "interval": changed["interval"] or old["interval"], "pieces": pieces}
    return {**change["record"], "routing": {**before["routing"], **change["record"]["routing"]}, "state": state}


def _units(record: Text) -> Iterator[tuple[str, int]]:
    for parts in record["state"].values():
        for manifest in parts:
            for piece in manifest["pieces"]:
                yield piece["punit"]["name"], piece["punit"]["bytes"]


def _holding(name: str, size: int) -> list[tuple[str, int]]:
    """The files that may hold a p-unit, a file of its own or a segment, and how large they are at least."""
    segment, at, start = name.rpartition("@")
    return [(name, size), *([(segment, int(start) + size)] if at else [])]
