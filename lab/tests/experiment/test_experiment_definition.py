"""What every experiment has without writing it: the command, the JSON, the files, the list."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from click.testing import Result as Told

from holdfast.cli import main
from holdfast_lab.experiment import Experiment, Figure, Result, Settings, at_least, at_most
from holdfast_lab.experiment.definition import matching
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.registry import MODULES, experiment, names, summary
from holdfast_lab.experiment.result_files import named
from holdfast_lab.experiment.shown_value import shown_value


def invoke(*arguments: str) -> Told:
    return CliRunner().invoke(main, ["experiment", *arguments])


def sorting(settings: Settings) -> Result:
    """How long sorting takes: small, but measured."""
    (settings.work / "scratch").write_text("x")
    settings.say("sorting")
    rows = []
    for size in settings.pick(quick=(1_000, 10_000), full=(1_000_000,)):
        values = [(number * 7_919 + settings.seed) % size for number in range(size)]
        started = time.perf_counter()
        values.sort()
        rows.append({"size": size, "order": "shuffled", "seconds": time.perf_counter() - started})

    def plot(figure: Figure) -> None:
        grouped_bars(figure.subplots(), rows, group="size", value="seconds", ylabel="seconds", log=True)

    return Result(
        keys=("size", "order"),
        rows=rows,
        paper=[
            {"size": 1_000, "order": "shuffled", "seconds": 0.5, "source": "A paper, Table 1"},
            {"order": "shuffled", "comparisons": None, "source": "A paper, Fig. 2, a plot"},
        ],
        bars=[at_most("seconds", rows[0]["seconds"], 60.0), at_least("impossible", rows[0]["seconds"], 1e9)],
        notes=["Sorted by Python."],
        plot=plot,
    )


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("holdfast_lab.experiment.sorting_of_lists")
    module.EXPERIMENT = Experiment("sorting", "How long sorting takes", "A paper, Table 1", "nothing", sorting)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(MODULES, "sorting", "sorting_of_lists")
    return "sorting"


def test_the_last_line_is_the_json_that_is_also_written(tiny: str, tmp_path: Path) -> None:
    told = invoke(tiny, "--quick", "--json", "--results", str(tmp_path), "--seed", "3")
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout.splitlines()[-1])
    assert result == json.loads((tmp_path / "sorting.json").read_text())
    assert {"experiment", "rows", "paper", "bars", "quick", "seconds", "notes"} <= result.keys()
    assert result["experiment"] == "sorting"
    assert result["quick"] is True
    assert [row["size"] for row in result["rows"]] == [1_000, 10_000]
    assert result["paper"][1]["comparisons"] is None
    assert [bar.keys() for bar in result["bars"]] == [{"name", "value", "bar", "ok"}] * 2
    assert result["notes"][0] == "Sorted by Python."
    assert "cores" in result["notes"][-1]


def test_plots_are_written_and_the_work_directory_is_gone(tiny: str, tmp_path: Path) -> None:
    assert invoke(tiny, "--quick", "--results", str(tmp_path / "new")).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["sorting.json", "sorting.png", "sorting.svg"]
    assert (tmp_path / "new" / "sorting.png").read_bytes().startswith(b"\x89PNG")
    assert "seconds" in (tmp_path / "new" / "sorting.svg").read_text()


def test_figures_stand_beside_the_paper_s_and_a_missed_bar_is_said(tiny: str, tmp_path: Path) -> None:
    told = invoke(tiny, "--quick", "--results", str(tmp_path)).output
    assert "seconds (paper)" in told
    assert "0.5" in told
    assert "failed" in told
    assert "missed: impossible" in told


def test_the_list_has_all_experiments() -> None:
    told = invoke("list", "--json")
    assert told.exit_code == 0
    listed = {one["name"]: one for one in json.loads(told.stdout.splitlines()[-1])}
    assert listed.keys() == set(MODULES)
    assert listed["codecs"]["figure"] == "Scabbard, Fig. 6"
    assert listed["codecs"]["title"] == experiment("codecs").title


def test_an_unknown_name_names_the_known_ones() -> None:
    told = invoke("no-such-experiment")
    assert told.exit_code == 1
    assert "cure: choose one of:" in told.output
    assert "codecs" in told.output


def test_every_experiment_says_what_it_is() -> None:
    for name in names():
        found = experiment(name)
        assert found.name == name
        assert found.title
        assert found.figure
        assert found.needs


def test_every_figure_has_its_command_in_the_docs() -> None:
    docs = Path(__file__).parents[3] / "docs"
    page, papers = ((docs / name).read_text() for name in ("experiments.md", "papers.md"))
    table = [line for line in papers.splitlines() if line.startswith("| ")]
    for name in names():
        paper, _, figure = experiment(name).figure.partition(", ")
        if figure and not paper.startswith("none"):
            [line] = [line for line in table if line.startswith(f"| {paper} | {figure} |")]
            assert f"`holdfast experiment {name}`" in line
        assert f"**{name}**" in page or name.startswith(("cec-", "laar-")), f"what '{name}' does is not said"


def test_a_list_shows_what_the_experiments_say_of_themselves() -> None:
    for name in names():
        known, shown = experiment(name), summary(name)
        assert (shown.name, shown.title, shown.figure, shown.needs) == (name, known.title, known.figure, known.needs)


def test_listing_imports_neither_spark_nor_matplotlib() -> None:
    code = (
        "import sys; from holdfast.cli import main\n"
        "try: main(['experiment', 'list'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'pyspark', 'matplotlib'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_figures_of_the_paper_go_with_all_rows_that_have_its_keys() -> None:
    result = Result(
        keys=("query", "system"),
        rows=[{"query": "a", "system": "x", "v": 1}, {"query": "b", "system": "x", "v": 2}],
        paper=[
            {"system": "x", "v": 7, "source": "§1"},
            {"query": "b", "system": "x", "w": 8, "z": None, "source": "§2"},
            {"query": "b", "system": "y", "v": 9, "source": "§3"},
        ],
    )
    assert matching(result, result.rows[0]) == {"v": 7, "source": "§1"}
    assert matching(result, result.rows[1]) == {"v": 7, "w": 8, "source": "§2"}


def test_a_result_whose_rows_cannot_be_told_apart_or_whose_figures_have_no_source_is_refused() -> None:
    with pytest.raises(ValueError, match="same query"):
        Result(keys=("query",), rows=[{"query": "a"}, {"query": "a"}])
    with pytest.raises(ValueError, match="source"):
        Result(keys=("query",), rows=[], paper=[{"query": "a", "v": 1}])


def test_a_bar_without_a_measurement_is_missed() -> None:
    assert not at_least("x", None, 1.0).ok
    assert not at_most("x", None, 1.0).ok
    assert at_least("x", 1.0, 1.0).ok
    assert at_most("x", 1.0, 1.0).ok


def test_the_json_has_no_numbers_that_json_does_not_know() -> None:
    result = Result(keys=("a",), rows=[{"a": 1, "b": float("nan"), "c": [float("inf")]}])
    told = named(Experiment("x", "X", "Y", "Z", sorting), result, True, 1.0)
    assert told["rows"] == [{"a": 1, "b": None, "c": [None]}]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (True, "yes"), (3, "3"), (0.01234, "0.0123"), (12_345.0, "12.3 k"), (4_000_000, "4 M"), ("a", "a")],
)
def test_values_are_shown_short(value: object, shown: str) -> None:
    assert shown_value(value) == shown
