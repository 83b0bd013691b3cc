"""Imports inside functions: only where a command would start slowly without them, or a library may be missing."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOTS = {"holdfast": REPOSITORY / "src/holdfast", "holdfast_lab": REPOSITORY / "lab/src/holdfast_lab"}
COMMANDS = ("holdfast/cli", "holdfast_lab/cli")
"""A command imports what it needs when it is called: `holdfast run --help` has to answer at once."""
QUICK = {"click"}
"""Third-party libraries that a command has loaded anyway."""
MOST = {
    "holdfast/cli": 165, "holdfast/connect": 49, "holdfast/engine": 1, "holdfast/ingress": 3, "holdfast/laar": 2,
    "holdfast/meta": 2, "holdfast/replica": 1, "holdfast/run.py": 13, "holdfast/run_handle.py": 1, "holdfast/spark": 4,
    "holdfast_lab/bench": 6, "holdfast_lab/chaos": 13, "holdfast_lab/cli": 64,
}  # fmt: skip
"""How many there are, by package. A lower number is written down here; a higher one needs a good reason."""


def _late(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = {id(node): node for function in functions for node in ast.walk(function)}
    yield from (node for node in found.values() if isinstance(node, ast.Import | ast.ImportFrom))


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that an import may load."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    assert node.module is not None
    inner = [f"{node.module}.{name.name}" for name in node.names]
    return [node.module, *(name for name in inner if _file(name) is not None)]


def _file(module: str) -> Path | None:
    first, _, rest = module.partition(".")
    if first not in ROOTS:
        return None
    path = ROOTS[first].joinpath(*rest.split(".")) if rest else ROOTS[first]
    return next((found for found in (path.with_suffix(".py"), path / "__init__.py") if found.is_file()), None)


def _at_top(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """What is imported when a module is, whatever it is wrapped in."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With):
            pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


@cache
def _direct(module: str) -> frozenset[str]:
    path = _file(module)
    if path is None:
        return frozenset()
    parents = {module.rpartition(".")[0]} - {""}
    imported = {name for node in _at_top(ast.parse(path.read_text())) for name in _names(node)}
    return frozenset(parents | imported)


def _is_slow(module: str) -> bool:
    """Whether importing it imports a third-party library."""
    pending, seen = [module], set()
    while pending:
        name = pending.pop()
        first = name.partition(".")[0]
        if first not in ROOTS and first not in sys.stdlib_module_names and first not in QUICK:
            return True
        if name not in seen:
            seen.add(name)
            pending += _direct(name)
    return False


def _package(path: Path) -> tuple[str, str]:
    """The package of a module, and where it is in it."""
    [(name, root)] = [(name, root) for name, root in ROOTS.items() if path.is_relative_to(root)]
    relative = path.relative_to(root)
    return f"{name}/{relative.parts[0]}", f"{name}/{relative.as_posix()}"


MODULES = sorted(path for root in ROOTS.values() for path in root.rglob("*.py"))


def test_commands_import_late_only_what_is_slow() -> None:
    quick = [
        f"{_package(path)[1]}: {ast.unparse(node)}"
        for path in MODULES
        if _package(path)[0] in COMMANDS
        for node in _late(ast.parse(path.read_text()))
        if not any(_is_slow(name) for name in _names(node))
    ]
    assert quick == []


def test_what_is_slow_is_known() -> None:
    assert _is_slow("holdfast.meta")
    assert _is_slow("holdfast.cli.output")
    assert not _is_slow("holdfast.errors")
    assert not _is_slow("holdfast.plurals")
    assert not _is_slow("json")


def test_every_other_late_import_says_why() -> None:
    silent = [
        f"{_package(path)[1]}: {ast.unparse(node)}"
        for path in MODULES
        if _package(path)[0] not in COMMANDS
        for node in _late(ast.parse(path.read_text()))
        if not re.search(r"# noqa: PLC0415 - \w+", path.read_text().splitlines()[node.lineno - 1])
    ]
    assert silent == []


def test_late_imports_do_not_become_more() -> None:
    found = Counter(_package(path)[0] for path in MODULES for _ in _late(ast.parse(path.read_text())))
    assert dict(found) == MOST


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f():\n    import json", ["import json"]),
        ("class C:\n    async def f(self):\n        if self:\n            from a import b", ["from a import b"]),
        ("import json\nif json:\n    import os", []),
    ],
)
def test_late_imports_are_found(text: str, found: list[str]) -> None:
    assert [ast.unparse(node) for node in _late(ast.parse(text))] == found
