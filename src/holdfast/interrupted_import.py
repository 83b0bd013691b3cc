"""Ctrl-C while a part of Holdfast is imported, which is most of the first second of a program: a word instead of a
traceback.

What is raised stays KeyboardInterrupt: a program that catches it goes on as it would, and any other ends by it. Only
what is printed then is another, and only about an interrupt of such an import.

It imports next to nothing, because what it imports is not covered yet.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, TracebackType

__all__ = ["import_part"]

_before = sys.excepthook


def import_part(name: str) -> ModuleType:
    """The module `name`. While it is imported this module stands in the place of `sys.excepthook`, and so it does after
    an interrupt; else the program is left as it was."""
    global _before
    known = sys.modules.get(name)
    # One that another thread is importing has half its names: `import_module` waits for it.
    if known is not None and not getattr(known.__spec__, "_initializing", False):
        return known
    if sys.excepthook is not _say_aborted:
        _before, sys.excepthook = sys.excepthook, _say_aborted
    interrupted = False
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        if not interrupted and sys.excepthook is _say_aborted:
            sys.excepthook = _before


def _say_aborted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt) and _passes_through_holdfast(trace):
        print("aborted", file=sys.stderr)
    else:
        _before(kind, error, trace)


def _passes_through_holdfast(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == __name__:
            return True
        trace = trace.tb_next
    return False
