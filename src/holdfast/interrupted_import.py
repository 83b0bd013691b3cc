"""Ctrl-C while `import holdfast` runs, which is most of the first second of a program: a word instead of a traceback.

What is raised stays KeyboardInterrupt: a program that catches it goes on as it would, and any other ends by it. Only
what is printed then is another, and only about an interrupt of this very import. `holdfast/__init__.py` imports this
module first, and says when it is through; until then, and not after, it is in the place of `sys.excepthook`.

It imports next to nothing, because what it imports is not covered yet.
"""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["import_is_done"]

_before = sys.excepthook


def _told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt) and _passes_through_holdfast(trace):
        print("aborted", file=sys.stderr)
    else:
        _before(kind, error, trace)


def _passes_through_holdfast(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "holdfast":
            return True
        trace = trace.tb_next
    return False


def import_is_done() -> None:
    """Leave the program as it was."""
    if sys.excepthook is _told:
        sys.excepthook = _before


sys.excepthook = _told
