"""Names of hidden columns stand in one module, and no two of them are the same."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast import hidden_columns

SOURCES = Path(holdfast.__file__).parent


def test_names_of_hidden_columns_are_written_in_one_module() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if hidden_columns.HIDDEN in path.read_text()
    }
    assert found == {"hidden_columns.py"}


def test_no_two_hidden_columns_have_the_same_name() -> None:
    values = [getattr(hidden_columns, name) for name in hidden_columns.__all__ if name.isupper() and name != "HIDDEN"]
    names = [name for value in values for name in ([value] if isinstance(value, str) else value)]
    assert all(map(hidden_columns.is_hidden, names))
    assert len(set(names)) == len(names)
    assert hidden_columns.visible(["a", *names, "b"]) == ["a", "b"]
