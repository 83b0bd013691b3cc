"""The experiment `controller`: what is told of a simulated run, what it is compared with, and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.experiment.controller import EXPERIMENT
from holdfast.experiment.controller_load import Case, asked, figures, series
from holdfast.experiment.controller_parts import KEYS, Part, combined
from holdfast.experiment.frame import Settings, at_most
from holdfast.experiment.output import named, write
from holdfast.graph.guarantee import Guarantee
from holdfast.replica.caution import Caution
from holdfast.replica.loads import Load, limited
from holdfast.replica.schemes import Scheme
from holdfast.replica.simulated_load import LoadRun, run_load

EVERY = 30.0
HOURS = 6


def _run(guarantee: Guarantee) -> LoadRun:
    """Six hours with a burst of one."""
    caution = Caution(report=EVERY)
    loads = (
        Load(number * EVERY, 3e5 if 2 <= number * EVERY / 3600 < 3 else 5e3, 1e7)
        for number in range(int(HOURS * 3600 / EVERY))
    )
    return run_load(limited(loads, caution.growth), guarantee, caution, failures_per_day=0)


def test_a_run_is_compared_with_schemes_that_stay() -> None:
    run = _run(Guarantee(1.0))
    assert run.best_fixed is Scheme.PASSIVE_STANDBY_COLD
    assert run.lacking[Scheme.DEPLOYED] == pytest.approx(3600, rel=0.3)
    assert run.lacking[Scheme.ACTIVE_REPLICATION] == 0
    assert run.broken == []
    assert run.least <= run.money <= run.fixed[run.best_fixed] <= run.dearest
    assert sum(run.seconds.values()) == pytest.approx(HOURS * 3600 - EVERY)


def test_nothing_stays_within_a_bound_that_nothing_keeps() -> None:
    run = _run(Guarantee(0.001))
    assert run.hopeless == pytest.approx(HOURS * 3600 - EVERY)
    assert run.broken == []


def test_the_figures_of_a_run() -> None:
    case = Case(7, Guarantee(1.0), _run(Guarantee(1.0)))
    told = figures(case, HOURS / 24, EVERY)
    assert (told["load"], told["guarantee"], told["best_fixed"]) == (7, "1 s", "passive standby cold")
    assert told["violations_s"] == len(case.run.broken) * EVERY
    assert told["cost_over_active"] < told["cost_over_fixed"] <= 1
    assert told["cost_over_least"] >= 1
    assert sum(told["hours"].values()) == pytest.approx(HOURS, abs=0.01)
    assert told["mostly"] == "deployed"
    assert told["active_cpus_over_one"] >= 2
    labels = [Case(1, each, case.run).label for each in asked(quick=True)]
    assert labels == ["0.2 s", "1 s", "5 s", "1 s, gap", "1 s, at most 0.5/h"]


def test_series_end_with_what_was_spent() -> None:
    run = _run(Guarantee(1.0))
    points = series(run)
    assert len({len(each) for each in points.values()}) == 1
    assert points["adaptive_money"][-1] == pytest.approx(run.money)
    assert points["active_money"][-1] == pytest.approx(run.dearest)
    assert points["best_fixed_money"][-1] == pytest.approx(run.fixed[Scheme.PASSIVE_STANDBY_COLD])


def test_a_short_run_keeps_every_guarantee_and_leaves_a_picture(tmp_path: Path) -> None:
    said: list[str] = []
    result = EXPERIMENT.run(Settings(quick=True, seed=1, work=tmp_path, say=said.append, days=0.15))
    assert len(result.rows) == 15
    assert len(said) == 3
    bars = {bar.name.split()[0]: bar for bar in result.bars}
    assert bars["seconds"].ok
    assert bars["seconds"].value == 0
    told = named(EXPERIMENT, result, True, 1.0)
    json.dumps(told, allow_nan=False)
    assert all(move["why"] for move in told["simulated"]["moves"])
    assert {path.suffix for path in write(result, told, tmp_path)} == {".json", ".png", ".svg"}


def test_parts_stand_side_by_side(tmp_path: Path) -> None:
    drawn: list[str] = []
    parts = [
        Part(name, [{"load": 1, "guarantee": "1 s", "moves": 3}], [at_most(name, 0, 0)], [name],
             lambda _, name=name: drawn.append(name), {"kept": name})
        for name in ("simulated", "real")
    ]  # fmt: skip
    result = combined(parts, [], ["moves"])
    assert [tuple(row[key] for key in KEYS) for row in result.rows] == [("simulated", 1, "1 s"), ("real", 1, "1 s")]
    told = named(EXPERIMENT, result, True, 1.0)
    assert told["real"] == {"kept": "real"}
    write(result, told, tmp_path)
    assert drawn == ["simulated", "real"]


def test_only_simulated_load_has_days(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["experiment", "codecs", "--days", "2", "--results", str(tmp_path)])
    assert told.exit_code == 2
    assert "leave out --days" in told.output
