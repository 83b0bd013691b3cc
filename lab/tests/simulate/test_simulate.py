"""`holdfast simulate`: many seeds, what they found, and one seed told in full."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast_lab.simulate.planted import PLANTED
from holdfast_lab.simulate.worlds import replay

BUG = "a publication is forgotten in the commit"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def last_json(result: Result) -> dict[str, Any]:
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_seeds_run_and_are_counted() -> None:
    result = invoke("--seeds", "4", "--first", "5", "--jobs", "1", "--json")
    assert result.exit_code == 0
    assert "4 seeds from 5 on in" in result.stdout
    assert "violations: 0" in result.stdout
    told = last_json(result)
    assert (told["first"], told["seeds"], told["failures"]) == (5, 4, [])
    assert told["per_minute"] > 0
    violations, speed = told["bars"]
    assert violations == {"name": "violations", "value": 0, "bar": 0, "ok": True}
    assert (set(speed), speed["bar"]) == ({"name", "value", "bar", "ok"}, 500)


def test_the_search_for_a_planted_bug_ends_with_its_first_violation() -> None:
    result = invoke("--seeds", "20", "--jobs", "1", "--plant", BUG, "--json")
    assert result.exit_code == 1
    assert "violation with seed 0: " in result.stdout
    assert "stopped after 1 violation; not run: 19 seeds" in result.stdout
    assert f"to reproduce: holdfast simulate --seed 0 --trace --plant '{BUG}'" in result.stdout
    told = last_json(result)
    assert [each["seed"] for each in told["failures"]] == [0]
    assert told["bars"] == [{"name": "violations by the planted bug", "value": 1, "bar": 1, "ok": True}]


def test_a_seed_is_told_in_full() -> None:
    result = invoke("--seed", "3", "--trace")
    assert result.exit_code == 0
    *lines, last = result.stdout.splitlines()
    assert lines == replay(3)[0]
    assert last == "seed 3: no violation"


def test_a_seed_with_a_violation_is_told_in_full() -> None:
    result = invoke("--seed", "0", "--trace", "--plant", BUG)
    assert result.exit_code == 1
    assert "VIOLATION the files: " in result.stdout
    assert last_json(invoke("--seed", "0", "--plant", BUG, "--json"))["problem"].startswith("ViolationError: the files")


def test_it_tells_which_seed_finds_which_planted_bug() -> None:
    result = invoke("--planted", "--seeds", "1", "--jobs", "1", "--json")
    assert result.exit_code == 1, "one seed does not find them all"
    told = last_json(result)
    assert list(told["planted"]) == list(PLANTED)
    found = {name: failure["seed"] for name, failure in told["planted"].items() if failure is not None}
    assert found[BUG] == 0
    assert f"{BUG}\n  seed 0: ViolationError: the files: " in result.stdout
    [bar] = told["bars"]
    assert (bar["value"], bar["bar"], bar["ok"]) == (len(found), len(PLANTED), False)
    assert result.stdout.count("  not found by 1 seed\n") == len(PLANTED) - len(found)


def test_what_was_not_reached_is_told() -> None:
    result = invoke("--seeds", "1", "--jobs", "1", "--json")
    told = last_json(result)
    missed = [place for place, times in told["reached"].items() if not times]
    assert 0 < len(missed) < len(told["reached"])
    assert f"reached: {len(told['reached']) - len(missed)} of {len(told['reached'])} places" in result.stdout
    assert f"  not reached: {missed[0]}" in result.stdout.splitlines()


def test_planted_bugs_are_named() -> None:
    assert invoke("--plant", "list").stdout.splitlines() == list(PLANTED)
    assert invoke("--plant", "no such bug").exit_code == 2
    assert invoke("--trace").exit_code == 2
