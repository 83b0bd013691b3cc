"""What commands print: tables as wide as the terminal, or as wide as needed where there is none; and bars for what
takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["LongTask", "console", "long_task"]

_WIDTH_OF_A_PIPE = 240
_BAR = 30


def console() -> Console:
    """Standard output as it is now, so that whoever redirects it gets the output."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else _WIDTH_OF_A_PIPE, highlight=False)


class LongTask:
    """How far something has come. Without a terminal nothing is shown."""

    def __init__(self, bar: Progress | None = None, task: TaskID | None = None) -> None:
        self._bar = bar
        self._task = task

    def at(self, done: float | None = None, text: str | None = None, total: float | None = None) -> None:
        """So much is `done`; `text` says what is being done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=text, total=total)

    def step(self) -> None:
        """One more is done."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


@contextmanager
def long_task(text: str, total: float | None = None) -> Iterator[LongTask]:
    """A bar on standard error, if that is a terminal; what is printed meanwhile scrolls above it. Without a `total` it
    only shows that something goes on, and since when."""
    if not sys.stderr.isatty():
        yield LongTask()
        return
    counts = (MofNCompleteColumn(),) if total is not None else ()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(_BAR), *counts, TimeElapsedColumn(),
        console=Console(file=sys.stderr), transient=True,
    )  # fmt: skip
    with bar:
        yield LongTask(bar, bar.add_task(text, total=total))
