"""`holdfast simulate`: many seeds, what they found, and one seed told in full."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import main
from holdfast.replica.ledger import CommitEpoch, Ledger
from holdfast.replica.seeds import history, run_seeds, together
from holdfast.replica.simulation import Parts


class ForgetsToCommit(Ledger):
    """Says that an epoch is committed, and the next one too, whoever asks."""

    def _commit(self, request: CommitEpoch) -> bool:
        return True


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.replica.seeds.Parts", lambda: Parts(ledger=ForgetsToCommit))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def last_json(result: Result) -> dict[str, object]:
    found = json.loads(result.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_seeds_run_and_are_counted() -> None:
    result = invoke("--seeds", "12", "--first", "5", "--jobs", "1", "--json")
    assert result.exit_code == 0
    assert "12 seeds from 5 on in" in result.stdout
    assert "violations: 0" in result.stdout
    told = last_json(result)
    assert (told["first"], told["seeds"], told["failures"]) == (5, 12, [])
    assert told["per_minute"] == pytest.approx(60 * 12 / told["seconds"])  # type: ignore[operator]


def test_hundreds_of_seeds_take_a_minute() -> None:
    """Of this process, whatever else the machine does; it runs some thousands."""
    began = time.process_time()
    report = run_seeds(0, 30)
    assert 60 * report.seeds / (time.process_time() - began) >= 200


def test_processes_find_what_one_process_finds() -> None:
    one, two = (last_json(invoke("--seeds", "30", "--jobs", jobs, "--json")) for jobs in ("1", "2"))
    for what in ("first", "seeds", "events", "epochs", "faults", "takeovers", "gaps", "failures"):
        assert one[what] == two[what]


@pytest.mark.usefixtures("broken")
def test_a_violation_is_told_with_its_seed_and_ends_with_1() -> None:
    result = invoke("--seeds", "40", "--jobs", "1", "--json")
    assert result.exit_code == 1
    assert "violation with seed 0: " in result.stdout
    assert "see it again: holdfast simulate --history 0" in result.stdout
    assert "stopped after 10 violations; not run: 30 seeds" in result.stdout
    failures = last_json(result)["failures"]
    assert isinstance(failures, Sequence)
    assert [each["seed"] for each in failures] == list(range(10))


@pytest.mark.usefixtures("broken")
def test_a_history_ends_with_the_violation() -> None:
    result = invoke("--history", "3")
    assert result.exit_code == 1
    assert " violation " in result.stdout.splitlines()[-1]


def test_a_history_is_the_whole_story() -> None:
    result = invoke("--history", "17")
    assert result.exit_code == 0
    head, *lines = result.stdout.splitlines()
    assert head == "seed 17: hosts a, b, c; passive standby cold; exactly-once"
    assert lines == history(17)
    told = last_json(invoke("--history", "17", "--json"))
    assert told == {"seed": 17, "problem": None, "history": lines}


def test_reports_add_up() -> None:
    parts = [run_seeds(0, 3), run_seeds(3, 4)]
    whole = run_seeds(0, 7)
    made = together(reversed(parts), whole.seconds)
    assert made == whole
    assert together([], 1.0).seeds == 0
