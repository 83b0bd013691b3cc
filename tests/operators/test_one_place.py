"""What is special about an operator stands in its own module: nobody else asks which one is before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast.operators.registry import OPERATORS

SOURCES = Path(holdfast.__file__).parent


def kinds() -> set[str]:
    """The names of the nodes and windows that operators are declared by."""
    return {kind.__name__ for operator in OPERATORS for kind in (operator.declared_as, operator.window) if kind}


def asked(tree: ast.AST) -> Iterator[str]:
    """The names of classes that are asked for: by isinstance, in a pattern, or by comparing types and names."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            yield from _names(node.args[1])
        elif isinstance(node, ast.MatchClass):
            yield from _names(node.cls)
        elif isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from _names(side)


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_questions_are_found() -> None:
    text = "isinstance(a, A | B); x = type(a) is C; y = a['kind'] != 'D'\nmatch a:\n    case E(): pass"
    assert {"A", "B", "C", "D", "E"} <= set(asked(ast.parse(text)))


def test_no_other_package_asks_which_operator_it_has() -> None:
    found = {
        (path.relative_to(SOURCES).as_posix(), name)
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] != "operators"
        for name in asked(ast.parse(path.read_text()))
        if name in kinds()
    }
    assert found == set()


def test_no_two_operators_run_the_same_node() -> None:
    assert len({(operator.declared_as, operator.window) for operator in OPERATORS}) == len(OPERATORS)
