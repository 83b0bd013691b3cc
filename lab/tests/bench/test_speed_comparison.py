"""`holdfast compare`: turns, ratios, and the sources that a process gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.cli.group import _COMMANDS_OF_THE_LAB
from holdfast.errors import DeclarationError, HoldfastError
from holdfast_lab.bench.speed_comparison import MEASUREMENTS, Checkout, Effort, compare_speed
from holdfast_lab.cli import COMMANDS

ROOT = Path(__file__).parents[3]


class Side:
    """Answers each command with the next of its figures."""

    def __init__(self, name: str, asked: list[tuple[str, str]], figures: Sequence[float]) -> None:
        self.name, self.asked, self.figures = name, asked, list(figures)

    def __call__(self, arguments: Sequence[str]) -> dict[str, Any]:
        self.asked.append((self.name, arguments[1]))
        figure = self.figures.pop(0)
        return {"tuples_per_s": figure, "epoch_ms": {"p50": figure}, "recovery_ms": {"p50": figure}}


def test_the_two_take_turns_and_the_other_is_first_in_every_second_round() -> None:
    asked: list[tuple[str, str]] = []
    runs = {side: Side(side, asked, [1.0] * 4) for side in ("old", "new")}
    compare_speed(runs, ["YSB", "keyed"], 2, Effort(), lambda line: None)
    assert asked == [
        ("old", "ysb"), ("new", "ysb"), ("old", "keyed"), ("new", "keyed"),
        ("new", "ysb"), ("old", "ysb"), ("new", "keyed"), ("old", "keyed"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new", "ratio", "ok"),
    [
        ("YSB", (100.0, 200.0, 400.0), (97.0, 100.0, 440.0), 0.97, True),
        ("YSB", (100.0,), (96.0,), 0.96, False),
        ("idle epoch", (90.0,), (100.0,), 0.9, False),
        ("replica takeover", (3_000.0,), (1_500.0,), 2.0, True),
    ],
)
def test_the_ratio_is_the_median_of_the_rounds_and_above_one_for_the_faster(
    name: str, old: Sequence[float], new: Sequence[float], ratio: float, ok: bool
) -> None:
    runs = {"old": Side("old", [], old), "new": Side("new", [], new)}
    [found] = compare_speed(runs, [name], len(old), Effort(), lambda line: None)
    assert found.ratio == pytest.approx(ratio)
    assert (found.bar().bar, found.bar().ok) == (0.97, ok)


def test_every_measurement_is_a_command_with_options_that_there_are() -> None:
    for measurement in MEASUREMENTS.values():
        arguments = list(measurement.arguments(Effort()))
        told = CliRunner().invoke(main, [*arguments, "--help"])
        assert told.exit_code == 0
        assert all(option in told.output for option in arguments if option.startswith("--"))


def test_a_checkout_runs_its_own_sources(tmp_path: Path) -> None:
    package = tmp_path / "src" / "holdfast"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import json, sys; print('first'); print(json.dumps(sys.argv[1:]))")
    checkout = Checkout(tmp_path)
    checkout.check()
    assert checkout.run(["bench", "ysb"]) == ["bench", "ysb"]
    (package / "__main__.py").write_text("raise SystemExit('the disk is full')")
    with pytest.raises(HoldfastError, match="the disk is full"):
        checkout.run(["bench", "ysb"])
    assert Checkout(ROOT).environment()["PYTHONPATH"].endswith("lab/src")


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="no checkout"):
        Checkout(tmp_path).check()


def test_the_last_line_has_the_bars(tmp_path: Path) -> None:
    for side, speed in (("old", 10.0), ("new", 5.0)):
        package = tmp_path / side / "src" / "holdfast"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(f"import json; print(json.dumps({{'tuples_per_s': {speed}}}))")
    told = CliRunner().invoke(
        main,
        ["compare", "--old", str(tmp_path / "old"), "--new", str(tmp_path / "new"), "--only", "YSB", "--rounds", "1"],
    )
    assert told.exit_code == 0, told.output
    assert "FAILED" in told.output
    assert json.loads(told.stdout.splitlines()[-1]) == {
        "bars": [{"name": "YSB", "value": 0.5, "bar": 0.97, "ok": False}],
        "measured": [{"name": "YSB", "old": [10.0], "new": [5.0], "ratio": 0.5}],
    }


def test_an_unknown_measurement_names_the_known_ones() -> None:
    told = CliRunner().invoke(main, ["compare", "--old", str(ROOT), "--only", "speed of light"])
    assert told.exit_code == 2
    assert "replica takeover" in told.output


def test_the_product_knows_the_names_of_the_lab_s_commands() -> None:
    assert set(_COMMANDS_OF_THE_LAB) == set(COMMANDS)
