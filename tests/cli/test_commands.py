"""What every command has: help, versions, errors that name a cure, and the right exit code."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import main
from holdfast.cli.shared_options import SecondsRange


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_the_version_is_the_package_s() -> None:
    assert holdfast.__version__ in invoke("--version").output


def test_help_lists_all_commands() -> None:
    listed = invoke("--help").output
    for command in ("run", "explain", "status", "state", "bench", "chaos", "demo"):
        assert f"  {command} " in listed
        assert invoke(command, "--help").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("run",),
        ("run", "x.py", "--latency", "0"),
        ("state", "p", "o", "--format", "xml"),
        ("bench", "idle", "--engine", "spark"),
        ("bench", "ysb", "--engine", "flink"),
        ("chaos", "ysb", "--kinds", "meteor"),
        ("chaos", "ysb", "--kinds", "executor"),
        ("up", "x.py", "--beat", "1", "--detection", "1"),
        ("up", "x.py", "--meta-of", "a"),
        ("up", "x.py", "--meta-of", "c=postgresql://localhost/meta"),
    ],
)
def test_wrong_usage_ends_with_code_2(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_an_error_shows_problem_and_cure_without_a_traceback() -> None:
    result = invoke("run", "nowhere.py")
    assert result.exit_code == 1
    assert "file nowhere.py does not exist" in result.output
    assert "cure:" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("flag", ["-v", "--traceback"])
def test_the_traceback_is_there_for_who_wants_it(flag: str) -> None:
    result = invoke("explain", "nowhere.py", flag)
    assert result.exit_code == 1
    assert "Traceback" in result.output


@pytest.mark.parametrize("arguments", [("status",), ("status", "p"), ("state", "p", "o")])
def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments, "--store", str(tmp_path / "store"))
    assert result.exit_code == 1
    assert "there is no store" in result.output
    assert not (tmp_path / "store").exists()


def test_an_unknown_query_names_the_known_ones() -> None:
    for command in ("bench", "chaos"):
        result = invoke(command, "no-such-query")
        assert result.exit_code == 1
        assert "YSB" in result.output


def test_explain_tells_stages_and_guarantees() -> None:
    example = Path(__file__).parents[2] / "examples" / "ysb.py"
    told = invoke("explain", str(example)).output
    assert "stage 1" in told
    assert "exactly once" in told


@pytest.mark.parametrize("conf", [["spark.x"], ["=1"], ["spark.x=1", "spark.x=2"]])
def test_settings_of_spark_are_given_as_key_and_value(conf: list[str]) -> None:
    result = CliRunner().invoke(main, ["run", "x.py", *(word for setting in conf for word in ("--conf", setting))])
    assert result.exit_code == 2
    assert "KEY=VALUE" in result.output


@pytest.mark.parametrize(("given", "seconds"), [("0.5", 0.5), ("20ms", 0.02), ("1 min", 60.0), ("2", 2.0)])
def test_times_are_taken_as_seconds_or_in_words(given: str, seconds: float) -> None:
    assert SecondsRange(min=0, min_open=True).convert(given, None, None) == seconds


@pytest.mark.parametrize("given", ["soon", "0", "20 parsecs", "-1s"])
def test_what_is_no_time_is_wrong_usage(given: str) -> None:
    with pytest.raises(click.BadParameter):
        SecondsRange(min=0, min_open=True).convert(given, None, None)
