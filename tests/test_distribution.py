"""What the product is made of: it stands without the lab, and its wheel has nothing of it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from click.testing import CliRunner
from hatchling.builders.wheel import WheelBuilder

import holdfast
from clean_environment import clean_environment
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
from importlib.util import find_spec
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform

assert Path(hf.__file__).is_relative_to(sys.prefix), hf.__file__
assert not any(map(find_spec, ("pytest", "holdfast_lab", "grpc", "highspy", "deltalake"))), "nothing else is there"
pipeline = hf.Pipeline("alone")
rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"ts": range(9), "k": [1, 2, 3] * 3})), event_time="ts",
                       time_unit="s")
rows.key_by("k").window(hf.window.tumbling("3s")).agg(n=hf.count()).sink("out", hf.sink.parquet("out"))
FragmentRun(pipeline, InProcessPlatform(), hf.RunOptions(store="store", until_idle=True)).run()
assert hf.read_output("out", "parquet")["n"].to_list() == [1] * 9
assert hf.rerun(pipeline, 1, store="store").equal
try:
    hf.source.push({"n": pl.Int64}, flight="127.0.0.1:0")
except hf.errors.DeclarationError as error:
    print(error.cure)
"""


@pytest.fixture(scope="module")
def clean(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel, what it requires, and nothing else."""
    assert wheel.filename is not None
    return clean_environment(tmp_path_factory.mktemp("clean") / "venv", Path(wheel.filename))


def said(*command: object, home: Path, timeout: float = 120) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(word) for word in command], cwd=home, env=env, timeout=timeout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_wheel_runs_commands_and_a_pipeline(clean: Path, tmp_path: Path) -> None:
    commands = said(clean.with_name("holdfast"), "--help", home=tmp_path)
    assert "Run a pipeline declared in a Python file." in commands
    assert "Measure a query of the papers." not in commands, "that is the lab's"
    assert said(clean, "-c", ALONE, home=tmp_path) == "pip install 'holdfast[flight]'\n"


@pytest.mark.long  # starts Spark twice
@pytest.mark.timeout(600)
def test_the_installed_wheel_runs_the_demo(clean: Path, tmp_path: Path) -> None:
    assert "equals the fault-free one" in said(clean.with_name("holdfast"), "demo", home=tmp_path, timeout=580)


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
