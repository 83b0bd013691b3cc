"""A console for tables: as wide as the terminal, and wide enough for everything where there is none."""

from __future__ import annotations

import sys

from rich.console import Console

__all__ = ["console"]

_WIDTH_OF_A_PIPE = 240


def console() -> Console:
    """Standard output as it is now, so that whoever redirects it gets the output."""
    terminal = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if terminal else _WIDTH_OF_A_PIPE, highlight=False)
