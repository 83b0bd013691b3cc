"""`holdfast laar` as a person or a program calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from samples import figure_1

from holdfast.cli import main


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["laar", *map(str, arguments)])


def last(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def example(tmp_path: Path) -> Path:
    path = tmp_path / "figure1.json"
    path.write_text(json.dumps(figure_1()))
    return path


@pytest.mark.parametrize("search", ["milp", "ft"])
def test_solve_ends_with_a_line_of_json(example: Path, search: str) -> None:
    result = call("solve", example, "--search", search, "--time-limit", "5", "--json")
    assert result.exit_code == 0
    told = last(result)
    assert set(told) == {"status", "cost", "ic", "bound", "seconds", "strategy"}
    assert (told["status"], told["cost"], told["bound"]) == ("optimal", 1.6, pytest.approx(1.6))
    assert told["ic"] == pytest.approx(2 / 3)
    assert told["strategy"]["Low"] == [[1, 1], [1, 1]]


def test_that_there_is_no_strategy_is_a_result(example: Path) -> None:
    result = call("solve", example, "--ic", "0.7", "--json")
    assert result.exit_code == 0
    assert {**last(result), "seconds": 0} == {
        "status": "infeasible", "cost": None, "ic": None, "bound": None, "seconds": 0, "strategy": None,
    }  # fmt: skip


def test_what_solve_prints_is_what_check_reads(example: Path, tmp_path: Path) -> None:
    for options in ([], ["--place"], ["--failures", "host-crash"]):
        found = call("solve", example, "--json", *options)
        strategy = tmp_path / "strategy.json"
        strategy.write_text(found.stdout.splitlines()[-1])
        failures = options if "--failures" in options else []
        result = call("check", example, strategy, "--json", *failures)
        assert result.exit_code == 0
        assert last(result)["valid"] is True
        assert last(result)["cost"] == last(found)["cost"]


def test_check_names_what_is_violated(example: Path, tmp_path: Path) -> None:
    strategy = tmp_path / "strategy.json"
    strategy.write_text(json.dumps({"strategy": {"Low": [[1, 0], [0, 0]], "High": [[1, 1], [1, 1]]}}))
    result = call("check", example, strategy, "--json")
    assert result.exit_code == 1
    told = " ".join(last(result)["problems"])
    assert "Low: no replica of 'pe2' is active" in told
    assert "High: host 0 needs 1.6 of 1 cycles/s" in told
    assert "internal completeness" in told


def test_a_bad_descriptor_ends_with_problem_and_cure(tmp_path: Path) -> None:
    said = figure_1()
    said["edges"][1]["selectivity"] = -1
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(said))
    result = call("solve", path)
    assert result.exit_code == 1
    assert "edges[1].selectivity" in result.stderr
    assert "cure:" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments",
    [["--time-limit", "0"], ["--ic", "1.5"], ["--ic", "x"], ["--search", "ft", "--place"], ["--penalty", "-1"]],
)
def test_wrong_usage(example: Path, arguments: list[str]) -> None:
    assert call("solve", example, *arguments).exit_code == 2


def test_generate_writes_what_solve_reads(tmp_path: Path) -> None:
    path = tmp_path / "generated.json"
    arguments = ["generate", "--seed", "3", "--hosts", "3", "--pes-per-host", "2", "--ic", "0.6"]
    assert call(*arguments, "-o", path).exit_code == 0
    assert json.loads(call(*arguments).stdout) == json.loads(path.read_text())
    assert json.loads(path.read_text())["ic_target"] == 0.6
    assert last(call("solve", path, "--json"))["status"] in ("optimal", "infeasible")
