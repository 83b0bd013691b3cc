"""The example of a pipeline with tests, and the connectors in the documentation: they pass as they are printed."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

import holdfast as hf

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/connectors.md").read_text(encoding="utf-8")


def loaded(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLE = loaded(ROOT / "examples/tested_pipeline.py", "tested_pipeline")
TESTS = [name for name in vars(EXAMPLE) if name.startswith("test_")]


@pytest.mark.parametrize("name", TESTS)
def test_the_example_passes_its_tests(name: str) -> None:
    getattr(EXAMPLE, name)()


def printed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class that a page prints, as a module that other processes can import, too."""
    [block] = [
        block
        for block in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
        if f"class {name}(" in block
    ]
    code = [line for line in block[block.index("class ") :].splitlines() if line]
    assert len(code) <= 30
    module = f"printed_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(block, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return getattr(importlib.import_module(module), name)


def test_the_source_in_the_documentation_passes_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = printed("ClickTable", tmp_path, monkeypatch)
    file = str(tmp_path / "clicks.db")
    rows = pl.DataFrame({"ts": range(40), "page": [f"/{n % 3}" for n in range(40)]})

    def add(more: pl.DataFrame) -> pl.DataFrame:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("create table if not exists clicks (ts integer, page text)")
            connection.executemany("insert into clicks values (?, ?)", more.rows())
            connection.commit()
        return more

    add(rows)
    hf.testing.check_source(lambda: kind(file), rows, feed=lambda: add(rows[:7]), crashes=4)


def test_the_sink_in_the_documentation_passes_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = printed("CsvFolder", tmp_path, monkeypatch)

    def read(place: str) -> Any:
        return pl.read_csv(tmp_path / place / "*" / "*.csv") if any((tmp_path / place).glob("*/*")) else []

    hf.testing.check_sink(lambda place: kind(tmp_path / place), read, crashes=8)
