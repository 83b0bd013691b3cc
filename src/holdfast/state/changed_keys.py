"""What is wrong with the keys that a user's function changes the state of."""

from __future__ import annotations

from typing import Any

from holdfast.errors import OperatorError

__all__ = ["repeated_key", "strange_key"]


def repeated_key(key: tuple[Any, ...]) -> OperatorError:
    return OperatorError(
        f"the key {key} occurs twice in one Step",
        cure="return one row per key among upserts and deletes, e.g. with group_by(keys).last()",
    )


def strange_key(key: tuple[Any, ...]) -> OperatorError:
    """The state of a key that no row brought may live in another partition: it cannot be changed from here."""
    return OperatorError(
        f"the function changes the state of key {key}, which is neither in its rows nor in its timers",
        cure="change only the state of the given keys; to reach another key, output a row and key_by again",
    )
