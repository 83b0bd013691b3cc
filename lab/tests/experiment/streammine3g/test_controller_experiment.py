"""The experiment `controller`: what is told of a simulated run, what it is compared with, and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.graph.guarantee import Guarantee
from holdfast.replica.fragment_notes import Decision
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast_lab.experiment.definition import Settings, at_most
from holdfast_lab.experiment.result_files import named, write
from holdfast_lab.experiment.streammine3g.controller import EXPERIMENT
from holdfast_lab.experiment.streammine3g.controller_hosts import HostsTimeline, PrimaryKill, SchemeSample, draw, judged
from holdfast_lab.experiment.streammine3g.controller_hosts import figures as real_figures
from holdfast_lab.experiment.streammine3g.controller_load import LoadCase, asked, figures, series
from holdfast_lab.experiment.streammine3g.controller_parts import KEYS, ControllerPart, combined
from holdfast_lab.simulate.loads import Load, limited
from holdfast_lab.simulate.simulated_load import LoadRun, run_load

EVERY = 30.0
HOURS = 6


def _run(guarantee: Guarantee) -> LoadRun:
    """Six hours with a burst of one."""
    margins = ControllerMargins(report=EVERY)
    loads = (
        Load(number * EVERY, 3e5 if 2 <= number * EVERY / 3600 < 3 else 5e3, 1e7)
        for number in range(int(HOURS * 3600 / EVERY))
    )
    return run_load(limited(loads, margins.growth), guarantee, margins, failures_per_day=0)


def test_a_run_is_compared_with_schemes_that_stay() -> None:
    run = _run(Guarantee(2.5))
    assert run.best_fixed is COLD_STANDBY
    assert run.lacking[DEPLOYED] == pytest.approx(3600, rel=0.3)
    assert run.lacking[ACTIVE_REPLICATION] == 0
    assert run.broken == []
    assert run.least <= run.money <= run.fixed[run.best_fixed] <= run.dearest
    assert sum(run.seconds.values()) == pytest.approx(HOURS * 3600 - EVERY)


def test_nothing_stays_within_a_bound_that_nothing_keeps() -> None:
    run = _run(Guarantee(0.001))
    assert run.hopeless == pytest.approx(HOURS * 3600 - EVERY)
    assert run.broken == []


def test_the_figures_of_a_run() -> None:
    case = LoadCase(7, Guarantee(2.5), _run(Guarantee(2.5)))
    told = figures(case, HOURS / 24, EVERY)
    assert (told["load"], told["guarantee"], told["best_fixed"]) == (7, "2.5 s", "passive standby cold")
    assert told["violations_s"] == len(case.run.broken) * EVERY
    assert told["cost_over_active"] < told["cost_over_fixed"] <= 1
    assert told["cost_over_least"] >= 1
    assert sum(told["hours"].values()) == pytest.approx(HOURS, abs=0.01)
    assert told["mostly"] == "deployed"
    assert told["active_cpus_over_one"] >= 2
    labels = [LoadCase(1, guarantee, case.run).label for guarantee in asked(quick=True)]
    assert labels == ["1.7 s", "2.5 s", "6.5 s", "2.5 s, gap", "2.5 s, at most 0.5/h"]


def test_series_end_with_what_was_spent() -> None:
    run = _run(Guarantee(2.5))
    points = series(run)
    assert len({len(column) for column in points.values()}) == 1
    assert points["adaptive_money"][-1] == pytest.approx(run.money)
    assert points["active_money"][-1] == pytest.approx(run.dearest)
    assert points["best_fixed_money"][-1] == pytest.approx(run.fixed[COLD_STANDBY])


@pytest.mark.long
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
        ControllerPart(name, [{"load": 1, "guarantee": "1 s", "moves": 3}], [at_most(name, 0, 0)], [name],
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


def _log(*schemes: str) -> HostsTimeline:
    """A look per second; the first scheme costs 1, the others 3, and active replication would cost 4."""
    samples = [
        SchemeSample(float(at), 1e3, scheme, 1.5, 1e6 * at, 1.0 if scheme == schemes[0] else 3.0, 4.0)
        for at, scheme in enumerate(schemes)
    ]
    hits = [PrimaryKill(1.0, schemes[0], 1.0, 1.2, 1.5, 3), PrimaryKill(3.0, schemes[-1], 1.9, 1.7, 2.5, 5)]
    return HostsTimeline(samples, hits)


def test_the_figures_of_real_hosts() -> None:
    told = real_figures(_log("deployed", "deployed", "passive standby cold", "passive standby cold", "deployed"), 2.0)
    assert (told["guarantee"], told["moves"], told["kills"], told["broken"]) == ("2 s", 2, 2, 0)
    assert told["mostly"] == "deployed"
    assert told["worst_recovery_s"] == 1.9
    assert told["cost_over_active"] == pytest.approx((3 * 1 + 2 * 3) / 20)
    assert told["predicted_off"] == pytest.approx(0.2)


def test_real_hosts_are_judged_by_the_recoveries_there_were() -> None:
    log = _log("deployed", "passive standby cold", "deployed")
    assert all(bar.ok for bar in judged(log, 2.0))
    assert [bar.ok for bar in judged(log, 1.5)] == [False, True, True, True]
    assert [bar.ok for bar in judged(_log("deployed"), 2.0)] == [True, True, False, True]
    assert not any(bar.ok for bar in judged(HostsTimeline(), 2.0)[1:])


def test_decisions_are_kept_once() -> None:
    log = HostsTimeline()
    lines = [Decision(at=at, to=None, reason="calm") for at in (90.0, 103.0, 105.0)]
    log.note(lines[:2], began=100.0)
    log.note(lines, began=100.0)
    assert [decision["at"] for decision in log.decisions] == [3.0, 5.0]


def test_real_hosts_stand_beside_simulated_ones_in_the_picture(tmp_path: Path) -> None:
    log = _log("deployed", "passive standby cold", "deployed")
    part = ControllerPart("real", [real_figures(log, 2.0)], judged(log, 2.0), [], lambda figure: draw(figure, log, 2.0))
    result = combined([part], [], ["moves", "kills"])
    told = named(EXPERIMENT, result, False, 1.0)
    json.dumps(told, allow_nan=False)
    assert {path.suffix for path in write(result, told, tmp_path)} == {".json", ".png", ".svg"}
