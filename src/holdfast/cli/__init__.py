"""The command line: `holdfast run`, `explain`, `status`, `state`, `bench`, `chaos`, `simulate`, `demo` and others."""

from holdfast.cli.group import main

__all__ = ["main"]
