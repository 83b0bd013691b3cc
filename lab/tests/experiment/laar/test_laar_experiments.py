"""The experiments on LAAR: what they share, and small runs of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.laar import Sizes
from holdfast_lab.experiment import Result, Settings
from holdfast_lab.experiment.laar import applications, cost, failures, peak, search, summary
from holdfast_lab.experiment.plots import save
from holdfast_lab.experiment.registry import experiment

NAMES = ("laar-cost", "laar-peak", "laar-failures", "laar-summary")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(quick=True, seed=3, work=tmp_path, say=lambda text: None)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small applications, and a short trace."""
    whole = applications.ran

    def fewer(settings: Settings, count: int, *, crashes: int = 0, **more: Any) -> Any:
        return whole(settings, min(2, count), crashes=min(1, crashes), **more)

    for module in (cost, failures, peak, summary):
        monkeypatch.setattr(module, "ran", fewer)
    monkeypatch.setattr(applications, "SIZES", Sizes(3, 4))
    monkeypatch.setattr(applications, "TRACE_SECONDS", 100.0)
    monkeypatch.setattr(search, "_QUICK_PROBLEMS", 4)


def drawn(result: Result, directory: Path) -> bool:
    assert result.plot is not None
    return all(path.stat().st_size > 1_000 for path in save(result.plot, "title", directory, "plot"))


def test_the_problems_are_of_all_sizes_and_targets() -> None:
    said = [applications.problem(number, 1) for number in range(0, applications.PROBLEMS, 7)]
    assert {problem.hosts for problem in said} == set(range(1, 13))
    assert {float(problem.ic_target) for problem in said} == {0.5, 0.6, 0.7, 0.8, 0.9}
    assert {len(problem.pes) for problem in [applications.problem(0, 1), applications.problem(131, 1)]} == {2, 144}
    assert applications.problem(42, 1) == applications.problem(42, 1) != applications.problem(42, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_run_of_the_simulated_experiments(name: str, settings: Settings, tmp_path: Path) -> None:
    result = experiment(name).run(settings)
    assert [row["variant"] for row in result.rows][:6] == list(applications.VARIANTS)
    assert len(result.also["applications"]) == 2
    assert [bar.name for bar in result.bars if not bar.ok] == []
    assert drawn(result, tmp_path)


@pytest.mark.long
def test_the_same_seed_gives_the_same_figures(settings: Settings) -> None:
    one, two = (experiment("laar-cost").run(settings) for _ in range(2))
    assert one.to_json() == two.to_json()


def test_failures_are_counted_against_the_target(settings: Settings) -> None:
    rows = {(row["failure"], row["variant"]): row for row in experiment("laar-failures").run(settings).rows}
    for variant, target in applications.LAAR.items():
        for failure in ("worst case", "worst case, reaction of hosts"):
            assert rows[failure, variant]["ic_least"] >= target
            assert rows[failure, variant]["violations"] == 0
    assert rows["worst case", "NR"]["ic"] == 0
    assert rows["host crash", "SR"]["runs"] == 1


@pytest.mark.long
def test_a_small_run_of_the_search(settings: Settings, tmp_path: Path) -> None:
    result = experiment("laar-search").run(settings)
    whole = {row["solver"]: row for row in result.rows if row["ic"] == "all"}
    assert whole["optimiser"]["problems"] == whole["FT-Search"]["problems"] == 4
    assert sum(whole["FT-Search"][f"pruned_{name}"] for name in ("CPU", "COMPL", "COST", "DOM")) == pytest.approx(1)
    assert next(bar for bar in result.bars if "differ" in bar.name).ok
    assert drawn(result, tmp_path)
