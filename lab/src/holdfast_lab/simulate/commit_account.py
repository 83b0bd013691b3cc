"""What simulated hosts write about epochs, judged at every transaction of the store.

It reads the tables by itself and looks at the disk, without the code under test:

- who plans or commits has a seat that allows it;
- a plan does not change, and an epoch is committed as planned, and with the same files for ever;
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
    """`state` is the directory of the stable tier, `retain` how many epochs are kept, `violate` tells what must not be.
    The store may know more epochs: only the primary forgets them."""

    def __init__(
        self, connection: Connection, disk: Disk, state: Path, retain: int, violate: Callable[[str], None]
    ) -> None:
        self._connection = connection
        self._disk = disk
        self._state = str(state)
        self._retain = retain
        self._violate = violate
        self._texts: dict[int, tuple[str, str | None]] = {}
        self._plans: dict[int, Text] = {}
        self._records: dict[int, Text] = {}
        self._receipts: dict[int, Any] = {}
        self._needed: dict[str, str] = {}
        """Files that must be there, each with who needs it."""

    def look(self, process: Process | None) -> None:
        """A transaction was done, by this process."""
        found: dict[int, tuple[str, str | None]] = {
            epoch: (plan, record)
            for epoch, plan, record in self._connection.execute("SELECT epoch, plan, record FROM epochs")
        }
        if found != self._texts:
            self._check_seat(process)
            for epoch, texts in found.items():
                if self._texts.get(epoch) != texts:
                    self._check_epoch(epoch, *texts)
            self._texts = found
            self._check_durable()
        for name, what in self._needed.items():
            if not os.path.exists(f"{self._state}/{name}"):
                self._violate(f"{name} is gone, and is {what}")

    def _check_seat(self, process: Process | None) -> None:
        if process is None:
            return
        seats, sharing = self._connection.execute("SELECT seats, sharing FROM replicas").fetchone()
        primary, secondary = (json.loads(seats)[seat] for seat in ("primary", "secondary"))
        who = [process.host, process.number]
        if primary is None or primary[:2] == who or (sharing and secondary is not None and secondary[:2] == who):
            return
        self._violate(f"{process.name} plans or commits, and has no seat that allows it")

    def _check_epoch(self, epoch: int, plan_text: str, record_text: str | None) -> None:
        plan = _opened(plan_text)
        if self._plans.setdefault(epoch, plan) != plan:
            self._violate(f"epoch {epoch} was planned twice")
        if record_text is None:
            return
        record = _opened(record_text)
        self._records[epoch] = record
        if record["positions"] != plan["positions"]:
            self._violate(f"epoch {epoch} was committed at {record['positions']}, and planned to {plan['positions']}")
        if record["receipts"] and self._receipts.setdefault(epoch, record["receipts"]) != record["receipts"]:
            self._violate(f"epoch {epoch} was committed twice, with different files")

    def _check_durable(self) -> None:
        """What must be there from now on, and is durable."""
        before = self._needed
        self._needed = dict(self._needs())
        for name, what in self._needed.items():
            if name not in before and not self._disk.is_durable(f"{self._state}/{name}"):
                self._violate(f"{name} is not synced, and is {what}")

    def _needs(self) -> Iterator[tuple[str, str]]:
        committed = sorted(epoch for epoch, (_, record) in self._texts.items() if record is not None)
        for epoch in committed[-self._retain :]:
            record = self._records[epoch]
            if record["base"] is None:
                yield from ((name, f"state of epoch {epoch}") for name in _files(record))
        base = self._records[committed[-1]]["base"] if committed else None
        if base is None:
            return
        begin = int(base["epoch"])
        for epoch in range(max(1, begin), committed[-1]):
            if epoch not in self._texts:
                self._violate(f"epoch {epoch} is forgotten, and is to be run again after epoch {begin}")
        if begin in self._texts and not base["empty"] and not base["eventual"]:
            yield from ((name, f"state to begin again from, of epoch {begin}") for name in _files(self._records[begin]))


def _opened(text: str) -> Text:
    """What the store has after a checksum."""
    found: Text = json.loads(text.partition(" ")[2])
    return found


def _files(record: Text) -> Iterator[str]:
    for parts in record["state"].values():
        for manifest in parts:
            for piece in manifest["pieces"]:
                yield piece["punit"]["name"]
