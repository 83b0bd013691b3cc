"""Names stand for one thing: modules, those of tests (which pytest imports by name alone), classes, and loop variables.
Modules are of a length that can be read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from holdfast.cli.group import COMMANDS

ROOT = Path(__file__).parents[1]


def test_every_test_module_has_a_name_of_its_own() -> None:
    places: dict[str, list[Path]] = defaultdict(list)
    for tests in (ROOT / "tests", ROOT / "lab" / "tests"):
        for path in tests.rglob("test_*.py"):
            places[path.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_module_of_the_product_has_a_name_of_its_own() -> None:
    """A command is a module called after it (`cli/run.py`), beside which there may be what it is about."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "src").rglob("*.py"):
        if not path.stem.startswith("__") and not (path.parent.name == "cli" and path.stem in COMMANDS):
            places[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_class_of_the_product_has_a_name_of_its_own() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in _classes("src"):
        places[name.lstrip("_")].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_every_class_of_the_lab_has_a_name_of_its_own() -> None:
    """But for those that are private to a module."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in _classes("lab/src"):
        if not name.startswith("_"):
            places[name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_the_lab_calls_none_of_its_classes_as_one_of_the_product_is_called() -> None:
    """What is private to a module of the lab, as the twins of threads in a simulation are, may be."""
    product = {name for name, _ in _classes("src")}
    allowed = {"Program"}  # of a simulated world
    assert [(name, path) for name, path in _classes("lab/src") if name in product - allowed] == []


def _classes(place: str) -> Iterator[tuple[str, str]]:
    """The classes of modules, each with its file."""
    for path in sorted((ROOT / place).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, str(path.relative_to(ROOT))


def test_loop_variables_name_the_thing() -> None:
    """`for part in parts`, not `for each in parts`: a reader who comes upon the name in the middle knows what it is."""
    found = []
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "lab" / "src").rglob("*.py")]):
        found += [f"{path.relative_to(ROOT)}:{line}" for line in _lines_with_a_vague_loop(path)]
    assert found == []


def _lines_with_a_vague_loop(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            bound = [inner.id for inner in ast.walk(node.target) if isinstance(inner, ast.Name)]
        elif isinstance(node, ast.Lambda):
            bound = [argument.arg for argument in node.args.args]
        else:
            continue
        if "each" in bound:
            yield getattr(node, "lineno", None) or node.target.lineno  # a comprehension has no line of its own


def test_a_module_fits_in_a_head() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for source in (ROOT / "src", ROOT / "lab" / "src")
        for path in source.rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length > 400} == {}
