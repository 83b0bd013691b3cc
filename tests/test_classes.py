"""A class is about one thing: an object that changes has few attributes, and hands the rest to others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST = 18
LARGER = {"Crew": 23}
"""What has still to be split."""


def test_no_object_has_more_attributes_than_a_reader_can_hold() -> None:
    """Values are as wide as what they tell; so are the arguments of a function, which a `TypedDict` lists."""
    found = {
        f"{path.relative_to(ROOT)}: {node.name}": count
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and not _is_value(node)
        and (count := len(set(_attributes(node)))) > LARGER.get(node.name, MOST)
    }
    assert found == {}


def _is_value(node: ast.ClassDef) -> bool:
    frozen = [*map(ast.unparse, node.decorator_list), *map(ast.unparse, node.keywords)]
    return any("frozen=True" in text for text in frozen) or "TypedDict" in map(ast.unparse, node.bases)


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """Fields that are declared, and whatever a method puts into `self`."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if "ClassVar" not in ast.unparse(part.annotation):
                yield part.target.id
        elif isinstance(part, ast.FunctionDef):
            for inner in ast.walk(part):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_self(inner.value):
                    yield inner.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
