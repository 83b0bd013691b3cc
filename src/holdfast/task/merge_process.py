"""The process that merges large pieces of state in the background: `python -m holdfast.task.merge_process`.

It takes one order per line of standard input and answers with a line: the pieces it wrote, or why it could not. It has
one thread and a low priority: where epochs keep every core busy it gets a tenth of one, which is little enough
not to be felt, and enough to get on. What it reads may be removed meanwhile, as
epochs leave the retention: then the order fails, and nothing else happens. It ends with its standard input, so it
never outlives the driver.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from holdfast.errors import HoldfastError
from holdfast.graph.nodes import Stateful
from holdfast.operators.registry import operator_of
from holdfast.plan.program import Program
from holdfast.pstream.punit import close_all
from holdfast.state.levels import Merge, Target
from holdfast.state.manifest import Piece
from holdfast.state.tables import Writer
from holdfast.store import DirectoryStore
from holdfast.stored_json import JsonForm
from holdfast.task.work_directory import WorkDirectory, load_program

__all__ = ["MergeAnswer", "Order", "carry_out", "main"]


_NICE = 10


@dataclass(frozen=True, slots=True)
class Order:
    """A merge to do. `stem` begins the names of the p-units it writes, which nothing else uses."""

    target: Target
    merge: Merge
    watermark: int | None
    stem: str

    def writer(self, store: DirectoryStore) -> Writer:
        return Writer(store, self.target.operator, self.stem)

    def names(self) -> list[str]:
        """The names of all that it may have written."""
        where = f"{self.target.operator}/{self.target.table}/{self.stem}"
        return [f"{where}-{number}.arrow" for number in range(len(self.merge.intervals))]

    def encode(self) -> str:
        return _ORDER.encode(self)

    @staticmethod
    def decode(text: str) -> Order:
        return _ORDER.decode(text)


_ORDER = JsonForm(Order, "an order to merge")


@dataclass(frozen=True, slots=True)
class MergeAnswer:
    """What came of an order: the pieces that were written, or why there are none."""

    pieces: tuple[Piece, ...] = ()
    failed: str | None = None

    def encode(self) -> str:
        return _ANSWER.encode(self)

    @staticmethod
    def decode(text: str) -> MergeAnswer:
        return _ANSWER.decode(text)


_ANSWER = JsonForm(MergeAnswer, "the answer to an order to merge")


def carry_out(program: Program, order: Order, store: DirectoryStore) -> list[Piece]:
    """Merge, and write what comes of it."""
    node = program.nodes[order.target.operator]
    assert isinstance(node, Stateful)
    return operator_of(node).merge(order.target.table, order.merge, order.watermark, order.writer(store))


def main(work: tuple[Path, str], store: DirectoryStore, orders: TextIO, answers: TextIO) -> None:
    """Carry out orders until there are no more. The first line is the key of the program, `work` where it lies."""
    found = WorkDirectory(*work, bytes.fromhex(orders.readline()))
    for line in orders:
        order = Order.decode(line)
        try:
            answer = MergeAnswer(tuple(carry_out(load_program(found), order, store)))
        except (HoldfastError, OSError) as error:
            answer = MergeAnswer(failed=str(error))
        close_all()
        print(answer.encode(), file=answers, flush=True)


def _step_back() -> None:
    """What else the machine has to do comes first."""
    os.nice(_NICE)
    with contextlib.suppress(psutil.Error, OSError, AttributeError):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_BE, 7)


if __name__ == "__main__":
    _step_back()
    work, run, sync, root, *others = sys.argv[1:]
    places = DirectoryStore(Path(root), sync == "sync", tuple(Path(place) for place in others))
    main((Path(work), run), places, sys.stdin, sys.stdout)
