"""What crosses the borders of modules is typed, and what runs in a task knows nothing of the driver."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import holdfast

ROOT = Path(holdfast.__file__).parent
REPOSITORY = Path(__file__).parents[1]
ALLOWED = {
    # What a keyed process or a table holds in a column where a row says nothing: any value of the user's.
    "graph": 2,
    "state": 4,
}


def untyped(package: Path) -> Iterator[str]:
    """Public functions and methods, and fields of public classes, with a dictionary of anything."""
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        yield from _in(tree, path.relative_to(ROOT).as_posix())


def _in(node: ast.AST, where: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _in(child, f"{where}:{child.name}")
        elif isinstance(child, ast.AnnAssign) and isinstance(node, ast.ClassDef) and _public(child.target):
            if _is_untyped(child.annotation):
                yield f"{where}.{ast.unparse(child.target)}"
        elif isinstance(child, ast.FunctionDef) and (not child.name.startswith("_") or child.name == "__init__"):
            arguments = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
            annotations = [child.returns, *(argument.annotation for argument in arguments)]
            if any(_is_untyped(annotation) for annotation in annotations):
                yield f"{where}.{child.name}"


def _public(target: ast.expr) -> bool:
    return not ast.unparse(target).startswith("_")


def _is_untyped(annotation: ast.expr | None) -> bool:
    text = "" if annotation is None else ast.unparse(annotation)
    return "dict[str, Any]" in text or "Mapping[str, Any]" in text


def test_dictionaries_of_anything_do_not_cross_the_borders_of_modules() -> None:
    found = [(path.name, place) for path in sorted(ROOT.iterdir()) if path.is_dir() for place in untyped(path)]
    places = "\n".join(place for _, place in found)
    assert dict(Counter(package for package, _ in found)) == ALLOWED, places


def test_every_module_has_a_layer_that_is_documented() -> None:
    [contract] = [
        contract
        for contract in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    ]
    assert contract["exhaustive"]
    there = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {name for layer in contract["layers"] for name in layer.split(" | ")} == there - {"__init__"}
    page = (REPOSITORY / "docs/architecture.md").read_text()
    listed = page.partition("## Layers")[2].partition("\n## ")[0]
    names = [re.split(r" {3,}", line.strip())[0] for line in listed.splitlines() if line.startswith("    ")]
    documented = {name.removesuffix("/") for line in names for name in line.split()}
    assert there - {"__init__"} - documented == set()


DRIVER = ("engine", "spark", "durability", "replica", "scale", "laar", "ingress", "cli", "ui", "run", "running")


def loaded_by(*modules: str) -> set[str]:
    """What of Holdfast a fresh process has loaded after it has imported these modules."""
    program = (
        "import sys, importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*(name for name in sys.modules if name.startswith('holdfast.')))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_what_runs_in_a_task_does_not_import_the_driver() -> None:
    loaded = loaded_by(*(f"holdfast.task.{path.stem}" for path in (ROOT / "task").glob("[a-z]*.py")))
    assert "holdfast.task.assembly_task" in loaded
    assert sorted(name for name in loaded if name.split(".")[1] in DRIVER) == []


def test_the_public_module_loads_nothing_until_it_is_used() -> None:
    assert loaded_by("holdfast") == {"holdfast.interrupted_import"}
