"""The command line: `holdfast run`, `explain`, `status`, `state`, `demo` and others."""

from holdfast.cli.group import main

__all__ = ["main"]
