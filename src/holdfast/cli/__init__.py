"""The command line: `holdfast run`, `explain`, `status`, `state`, `bench`, `chaos` and `demo`."""

from holdfast.cli.group import main

__all__ = ["main"]
