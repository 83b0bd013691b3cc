"""What is public: every name is documented and stands in the reference, nothing else shows, old names tell the new."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from pyspark import cloudpickle

import holdfast as hf
from holdfast.cli.group import _COMMANDS_OF_THE_LAB
from holdfast.renamed import CALLBACKS, FUNCTIONS, METHODS

ROOT = Path(__file__).parents[1]


def reference() -> Any:
    """The script that writes the reference, as a module."""
    spec = importlib.util.spec_from_file_location("reference_page", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = reference()
NAMES = REFERENCE.public_names()
PUBLIC = {name.path for name in NAMES}
SPACES = [name.path for name in NAMES if isinstance(name.value, ModuleType)]


def test_every_public_name_says_what_it_is() -> None:
    assert [name.path for name in NAMES if not name.doc] == []
    for name in NAMES:
        if inspect.isclass(name.value):
            members = [member for member, _ in REFERENCE.members(name.value)]
            assert [member for member in members if not inspect.getdoc(getattr(name.value, member))] == [], name.path


def test_the_reference_has_every_public_name_as_it_is_now() -> None:
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    for path in PUBLIC:
        listed = path.startswith("errors.") and f"- `{path.removeprefix('errors.')}`: " in page
        assert listed or f"`hf.{path}`" in page, path
    assert page == REFERENCE.rendered(), "run `make reference`"


def test_every_type_in_a_public_signature_is_documented() -> None:
    types = REFERENCE.signature_types()
    assert {"CheckpointPolicy", "Duration", "FileSink", "IntervalPolicy", "SessionWindow"} <= types.keys()
    assert {"ExecutorPool", "OwnCluster"} <= PUBLIC
    assert [name for name, text in types.items() if not text] == []


def test_nothing_but_the_public_names_shows() -> None:
    assert {name for name in dir(hf) if not name.startswith("_")} == set(hf.__all__)
    # `errors` defines what it exports, and imports what it needs for it; `spark` is a package, whose modules are seen.
    for space in set(SPACES) - {"errors", "spark"}:
        module = getattr(hf, space)
        assert {name for name in vars(module) if not name.startswith("_")} == set(REFERENCE.exported(module)), space


def test_names_come_from_where_type_checkers_look_for_them() -> None:
    [block] = [
        node
        for node in ast.parse((ROOT / "src/holdfast/__init__.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imported = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    spaces = {name for name, module in imported.items() if module == "holdfast"}
    places = {name: f"holdfast.{module}" for name, module in hf._PLACES.items()}
    assert spaces == hf._SPACES == set(SPACES)
    assert {name: module for name, module in imported.items() if name not in spaces} == places
    assert sorted(imported) == sorted(hf.__all__)


def test_a_function_is_not_hidden_by_a_module_of_its_name() -> None:
    """Whatever was imported before it was asked for."""
    program = "\n".join(
        (
            "import holdfast.run, holdfast.state.reader, holdfast.pstream.link, holdfast as hf",
            "assert callable(hf.run) and callable(hf.state), (hf.run, hf.state)",
            "assert not hasattr(hf, 'pstream')",
            "from holdfast import run, state",
            "assert run is hf.run and state is hf.state",
        )
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_functions_that_use_the_public_names_can_be_sent_to_tasks() -> None:
    sent = cloudpickle.dumps(lambda: hf.window.tumbling("1s"))
    assert cloudpickle.loads(sent)() == hf.window.tumbling("1s")


@pytest.mark.parametrize("old", FUNCTIONS)
def test_an_old_name_tells_the_new_one(old: str) -> None:
    new = FUNCTIONS[old]
    assert new in PUBLIC
    with pytest.raises(AttributeError, match=re.escape(f"hf.{old} is hf.{new} since 0.2")):
        getattr(hf, old)


@pytest.mark.parametrize("old", METHODS)
def test_an_old_method_tells_the_new_one(old: str) -> None:
    stream = hf.Pipeline("p").source("rows", hf.source.memory(pl.DataFrame({"x": [1]})))
    with pytest.raises(AttributeError, match=f"Stream.{old} is Stream.{METHODS[old]} since 0.2"):
        getattr(stream, old)
    assert callable(getattr(stream, METHODS[old]))


def test_a_name_that_never_was_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'fils'"):
        hf.fils  # type: ignore[attr-defined]  # noqa: B018
    stream = hf.Pipeline("p").source("rows", hf.source.memory(pl.DataFrame({"x": [1]})))
    with pytest.raises(AttributeError, match="'Stream' object has no attribute 'filtr'"):
        stream.filtr  # type: ignore[attr-defined]  # noqa: B018


def test_the_migration_note_has_every_old_name() -> None:
    note = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
    for old, new in FUNCTIONS.items():
        assert re.search(rf"^\| .*`hf\.{old}`.* \| .*`hf\.{re.escape(new)}`", note, re.MULTILINE), old
    for old, new in METHODS.items():
        assert re.search(rf"^\| .*`\.{old}\(.*` \| .*`\.{new}\(", note, re.MULTILINE), old


def test_the_migration_note_has_every_callback_command_and_field_of_before() -> None:
    note = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
    for old, new in CALLBACKS.items():
        assert re.search(rf"^\| `{old}` \| `{new}\(", note, re.MULTILINE), old
    for old in (*_COMMANDS_OF_THE_LAB, "`history`", "status.epochs", "holdfast.completeness"):
        assert old in note, old


def mentions(text: str) -> set[str]:
    """The names behind `hf.` in a text, those in a namespace with it."""
    found = re.findall(r"\bhf\.(\w+)(?:\.(\w+))?", text)
    return {f"{first}.{second}" if second and first in SPACES else first for first, second in found}


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [path for place in ("src", "lab/src", "examples") for path in sorted((ROOT / place).rglob("*.py"))]


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "migration.md"], ids=lambda path: path.name)
def test_the_docs_name_only_what_is_there(path: Path) -> None:
    assert mentions(path.read_text(encoding="utf-8")) - PUBLIC == set()


def test_code_and_messages_name_only_what_is_there() -> None:
    named = {str(path): mentions(path.read_text(encoding="utf-8")) - PUBLIC for path in SOURCES}
    assert {path: names for path, names in named.items() if names} == {}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_use_only_the_public_api(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.partition(".")[0].startswith("holdfast")]
            assert all(alias.name == "holdfast" and alias.asname == "hf" for alias in ours), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("holdfast"), ast.unparse(node)
