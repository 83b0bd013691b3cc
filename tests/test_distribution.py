"""What the product is made of: it stands without the lab, and its wheel has nothing of it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from click.testing import CliRunner
from hatchling.builders.wheel import WheelBuilder

import holdfast
from holdfast.cli import main

ROOT = Path(__file__).parents[1]


def imports(directory: Path) -> Iterator[tuple[str, str]]:
    """Each file and each module that it imports, also inside of functions."""
    for path in sorted(directory.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield path.name, node.module
            elif isinstance(node, ast.Import):
                for name in node.names:
                    yield path.name, name.name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_the_product_does_not_import_the_lab() -> None:
    found = list(imports(ROOT / "src" / "holdfast"))
    assert len(found) > 1_000
    assert [
        (file, module) for file, module in found if module.partition(".")[0] in ("holdfast_lab", "matplotlib")
    ] == []


def test_examples_use_the_public_api_and_nothing_of_the_lab() -> None:
    used = {module for _, module in imports(ROOT / "examples") if module.startswith("holdfast")}
    assert used == {"holdfast"}


def test_the_wheel_has_the_package_and_no_experiment_workload_or_sample_data(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {"holdfast/__init__.py", "holdfast/py.typed", "holdfast/demo/ad_views.py"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"holdfast", "pyspark_holdfast"}
    pages = "holdfast/dashboard/static/"
    assert {Path(name).suffix for name in names if not name.startswith(pages)} == {".py", ".typed", ".properties"}
    assert {f"{pages}index.html", f"{pages}app.js", f"{pages}vendor/LICENSES.txt"} <= set(names)
    of_the_lab = {"bench", "chaos", "experiment", "simulate", "workloads"}
    assert [name for name in names if of_the_lab & {*Path(name).parts, Path(name).stem}] == []


def test_the_wheel_asks_for_no_plots_and_adds_one_program(wheel: zipfile.ZipFile) -> None:
    [metadata, entry_points] = [
        next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(f".dist-info/{file}"))
        for file in ("METADATA", "entry_points.txt")
    ]
    needed = Parser().parsestr(metadata).get_all("Requires-Dist", [])
    assert any(line.startswith("pyspark") for line in needed)
    assert [line for line in needed if "matplotlib" in line or "lab" in line] == []
    assert entry_points.split() == ["[console_scripts]", "holdfast", "=", "holdfast.cli:main"]


ALONE = """
import sys
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform

assert Path(hf.__file__).is_relative_to(sys.argv[1]), hf.__file__
pipeline = hf.Pipeline("alone")
rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"ts": range(9), "k": [1, 2, 3] * 3})), event_time="ts",
                       time_unit="s")
rows.key_by("k").window(hf.window.tumbling("3s")).agg(n=hf.count()).sink("out", hf.sink.parquet("out"))
FragmentRun(pipeline, InProcessPlatform(), hf.RunOptions(store="store", until_idle=True)).run()
assert hf.read_output("out", "parquet")["n"].to_list() == [1] * 9
assert hf.rerun(pipeline, 1, store="store").equal
"""


@pytest.mark.skipif(
    not os.environ.get("HOLDFAST_FUZZ"), reason="long; the other tests run the same code from the checkout"
)
def test_the_wheel_runs_commands_and_a_pipeline_without_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Installed as pip does it with a wheel of Python files alone, beside the libraries of the lock."""
    site, home = tmp_path / "site", tmp_path / "home"
    wheel.extractall(site)
    home.mkdir()
    for arguments in (["-m", "holdfast", "--version"], ["-m", "holdfast", "demo", "--help"], ["-c", ALONE, str(site)]):
        said = subprocess.run(
            [sys.executable, *arguments], cwd=home, env={**os.environ, "PYTHONPATH": str(site)}, timeout=120,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr
        assert said.stdout or arguments[0] == "-c"


def test_the_changelog_has_a_section_per_version_with_this_one_first() -> None:
    sections = re.findall(r"^## (\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == ["0.2", "0.1"]
    assert holdfast.__version__.startswith(f"{sections[0]}.")


@pytest.mark.parametrize("command", ["bench", "compare", "chaos", "simulate", "experiment"])
def test_a_command_of_the_lab_is_named_as_such_where_the_lab_is_not_installed(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ())
    told = CliRunner().invoke(main, [command])
    assert told.exit_code == 2
    assert f"'{command}' is a command of holdfast-lab" in told.output
    assert command not in CliRunner().invoke(main, ["--help"]).output.split()
