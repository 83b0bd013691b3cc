"""Observers for tests: made of functions, so that a test can collect reports in a list or act at an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.engine.observer import Observer

__all__ = ["watching"]


def watching(**events: Callable[..., Any]) -> Observer:
    """An observer that calls these functions, by the names of the observer's methods."""
    unknown = set(events) - {name for name in vars(Observer) if not name.startswith("_")}
    assert not unknown, f"an observer has no {unknown}"
    return type("Watching", (Observer,), {name: staticmethod(call) for name, call in events.items()})()
