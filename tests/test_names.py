"""Names stand for one thing: test modules, which pytest imports by name alone, and the classes of the product. Modules
are of a length that can be read."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import holdfast

ROOT = Path(__file__).parents[1]


def test_every_test_module_has_a_name_of_its_own() -> None:
    places: dict[str, list[Path]] = defaultdict(list)
    for tests in (ROOT / "tests", ROOT / "lab" / "tests"):
        for path in tests.rglob("test_*.py"):
            places[path.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_class_of_the_product_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in Path(holdfast.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(str(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_a_module_fits_in_a_head() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for source in (ROOT / "src", ROOT / "lab" / "src")
        for path in source.rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length > 400} == {}
