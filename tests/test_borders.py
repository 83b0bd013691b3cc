"""What crosses the borders of modules is typed, and what runs in a task knows nothing of the driver."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

ROOT = Path(holdfast.__file__).parent
REPOSITORY = Path(__file__).parents[1]
_ANYTHING = re.compile(r"\b(dict|Mapping|MutableMapping)\[str, (Any|object)\]")
_CONNECTOR = "a connector's own value, which no other code looks into"
_USER_VALUE = "values of the user's columns, of any type"
_CHECKED = "JSON that a person wrote: the function checks it"
ALLOWED = {
    "connect/base.py.Position": _CONNECTOR,
    "connect/base.py.Receipt": _CONNECTOR,
    "connect/base.py.Where": _CONNECTOR,
    "connect/kafka/row_frames.py:RowFrame.add": "fields as others wrote them, each checked against its column",
    "connect/schema.py.AnySchema": "types of columns as Polars takes them, among them Python's own",
    "engine/row_search.py.Condition": _USER_VALUE,
    "graph/keyed.py:KeyedStream.process": _USER_VALUE,
    "graph/nodes.py:KeyedProcess.defaults": _USER_VALUE,
    "laar/descriptor.py.read_descriptor": _CHECKED,
    "pstream/codecs/encoding.py.Meta": "each encoding has fields of its own, which its decoder alone reads",
    "replica/fragment_metrics.py:FragmentMetrics.from_json": _CHECKED,
    "state/inspection.py.Keys": _USER_VALUE,
    "state/layout.py:TableLayout.defaults": _USER_VALUE,
    "state/pipeline_shape.py:StateMeaning.defaults": _USER_VALUE,
    "state/tables.py.as_now": _USER_VALUE,
    "state/tables.py:KeyedTable.defaults": _USER_VALUE,
    "testkit/hand_run.py.Rows": _USER_VALUE,
}
"""Where a dictionary of anything is right, and why."""


def untyped() -> Iterator[str]:
    """Public functions and methods, fields of public classes, and public names of types, with a dictionary of
    anything."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        yield from _in(tree, path.relative_to(ROOT).as_posix())


def _in(node: ast.AST, where: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _in(child, f"{where}:{child.name}")
        elif isinstance(child, ast.AnnAssign) and isinstance(node, ast.ClassDef) and _public(child.target):
            if _is_untyped(child.annotation):
                yield f"{where}.{ast.unparse(child.target)}"
        elif isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module):
            [target] = [child.target] if isinstance(child, ast.AnnAssign) else child.targets
            # Names of types: what else a module assigns has its types where it is made.
            if _public(target) and _is_untyped(child.value):
                yield f"{where}.{ast.unparse(target)}"
        elif isinstance(child, ast.FunctionDef) and (not child.name.startswith("_") or child.name == "__init__"):
            arguments = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
            annotations = [child.returns, *(argument.annotation for argument in arguments)]
            if any(_is_untyped(annotation) for annotation in annotations):
                yield f"{where}.{child.name}"


def _public(target: ast.expr) -> bool:
    return not ast.unparse(target).startswith("_")


def _is_untyped(annotation: ast.expr | None) -> bool:
    text = "" if annotation is None else ast.unparse(annotation)
    return _ANYTHING.search(text) is not None


def test_dictionaries_of_anything_do_not_cross_the_borders_of_modules() -> None:
    assert sorted(untyped()) == sorted(ALLOWED)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def take(facts: dict[str, Any]) -> None: ...", ["m.take"]),
        ("def give() -> Mapping[str, object]: ...", ["m.give"]),
        ("class Taker:\n    emit: Callable[[str, dict[str, object]], None]", ["m:Taker.emit"]),
        ("Facts = dict[str, Any]", ["m.Facts"]),
        ("Keys: TypeAlias = 'int | Mapping[str, Any]'", ["m.Keys"]),
        ("Emit = Callable[[str, dict[str, object]], None]", ["m.Emit"]),
        ("def _own(facts: dict[str, Any]) -> dict[str, int]: ...", []),
        ("_Facts = dict[str, Any]", []),
        ("def take(facts: dict[str, str | int | None]) -> None: ...", []),
    ],
)
def test_dictionaries_of_anything_are_found_by_whatever_name(source: str, found: list[str]) -> None:
    assert list(_in(ast.parse(source), "m")) == found


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


DRIVER = (
    "engine", "spark", "meta", "durability", "replica", "scale", "laar", "ingress", "cli", "ui", "run", "run_handle",
)  # fmt: skip


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
