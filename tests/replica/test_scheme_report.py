"""What each scheme would take and cost, which one is chosen, and why: in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import main
from holdfast.graph.guarantee import Guarantee
from holdfast.replica.deployment import Deployment
from holdfast.replica.fragment_notes import Decision, Divergence, FragmentNotes, StoredNotes
from holdfast.replica.prediction import RecoveryCalibration
from holdfast.replica.scheme_controller import HostJoined, Measurement, SchemeController, decide
from holdfast.replica.scheme_report import ASSUMED, SchemeInUse, explained, scheme_in_use
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.seat_store import Agreed
from holdfast.replica.seats import Seats
from strategies import examples


def _marks(told: list[str]) -> dict[Scheme, str]:
    """By scheme, what its line ends with."""
    found = {}
    for scheme in wheel.SCHEMES:
        [line] = [line for line in told if line.startswith(f"  {scheme.name} ") and "/h  " in line]
        found[scheme] = line.partition("/h  ")[2]
    return found


def test_every_scheme_has_a_line_and_one_is_chosen() -> None:
    told = explained(Guarantee(recovery="3.5 s"), ASSUMED)
    assert told[0] == "replicas: no gap in the output longer than 3.5 s, nothing is dropped, whatever it costs"
    assert told[1].startswith("  measured: 100.0 MB of state, 10000 rows/s on 0.20 CPUs")
    marks = _marks(told)
    assert marks[DEPLOYED] == "chosen"
    assert marks[PASSIVE_REPLICATION] == "too slow"
    assert marks[ACTIVE_REPLICATION] == "sufficient, for more money"
    assert told[-1].startswith("  why: deployed recovers in 2.78 s, of which 1.50 s pass before it begins, at 0.011/h")
    assert len(told) == 3 + len(wheel.SCHEMES)


def test_assumed_figures_are_called_assumed() -> None:
    assert explained(Guarantee(recovery=60), ASSUMED, assumed=True)[1].startswith(
        "  assumed, since nothing has been measured yet: "
    )


def test_what_costs_least_needs_no_other_reason() -> None:
    told = explained(Guarantee(recovery=60), ASSUMED)
    assert _marks(told)[PASSIVE_REPLICATION] == "chosen"
    assert told[-1] == "  why: passive replication keeps the guarantee and costs least"


def test_a_budget_makes_schemes_too_dear() -> None:
    told = explained(Guarantee(recovery="1.6 s", budget=0.02), ASSUMED)
    marks = _marks(told)
    assert marks[ACTIVE_REPLICATION] == "too dear"
    assert marks[DEPLOYED] == "chosen, though it is too slow"
    assert "for at most 0.02/h" in told[0]
    assert "no faster one is within the budget" in told[-1]


def test_what_is_near_the_bound_says_what_it_may_come_to() -> None:
    marks = _marks(explained(Guarantee(recovery=2.8), ASSUMED))
    assert marks[DEPLOYED].startswith("too slow: it may reach 2.")
    assert marks[COLD_STANDBY] == "chosen"


def test_gap_recovery_is_said_and_is_faster() -> None:
    busy = replace(ASSUMED, rows_per_second=5e5)
    precise, gap = (explained(Guarantee(recovery=3.0, delivery=delivery), busy) for delivery in ("exactly-once", "gap"))
    assert "unprocessed rows may be dropped" in gap[0]
    assert _marks(precise)[DEPLOYED] == "too slow"
    assert _marks(gap)[DEPLOYED] == "chosen"


def test_one_host_leaves_no_choice() -> None:
    told = explained(Guarantee(recovery=3.5), ASSUMED, hosts=1)
    marks = _marks(told)
    assert marks.pop(PASSIVE_REPLICATION) == "chosen, though it is too slow"
    assert set(marks.values()) == {"not possible"}
    assert "there is 1 host, and a secondary needs a second one" in told[-1]


def test_replicas_that_differ_leave_fewer_schemes() -> None:
    told = explained(Guarantee(recovery="1.6 s"), ASSUMED, diverged=Divergence("b", 7, "rows differ"))
    marks = _marks(told)
    assert marks[ACTIVE_STANDBY] == marks[ACTIVE_REPLICATION] == "not possible"
    assert marks[HOT_STANDBY] == "chosen, though it is too slow"
    assert "b differed in epoch 7" in told[-1]


def test_what_hosts_keep_is_not_chosen_anew() -> None:
    told = explained(Guarantee(recovery=3.5), ASSUMED, in_use=SchemeInUse(COLD_STANDBY, "somebody has said so"))
    marks = _marks(told)
    assert marks[COLD_STANDBY] == "in use"
    assert marks[DEPLOYED] == "sufficient, for less money"
    assert marks[ACTIVE_STANDBY] == "sufficient, for more money"
    assert told[-1] == "  why: somebody has said so"


def test_what_hosts_keep_for_whoever_joins_is_not_called_possible() -> None:
    told = explained(Guarantee(recovery=3.5), ASSUMED, hosts=1, in_use=SchemeInUse(DEPLOYED, "somebody has said so"))
    assert _marks(told)[DEPLOYED] == "in use, though it is not possible"
    assert told[-1] == "  why: somebody has said so; there is 1 host, and a secondary needs a second one"


def noted(*decided: str | None) -> FragmentNotes:
    return FragmentNotes(StoredNotes(decisions=tuple(Decision(0.0, to, "") for to in decided)).encode())


@pytest.mark.parametrize(
    ("fixed", "decided", "why"),
    [
        (None, [], "the controller found no reason to leave it"),
        (None, ["active standby", "deployed", None], "the controller chose it"),
        (None, ["active standby"], "set by hand, before that active standby; the controller continues from there"),
        (DEPLOYED, [], "set by --scheme; the controller only predicts"),
        (ACTIVE_STANDBY, [], "set by hand, before that active standby"),
    ],
)
def test_who_has_chosen_the_scheme_in_use(fixed: Scheme | None, decided: list[str | None], why: str) -> None:
    agreed = Agreed(Seats(DEPLOYED), noted(*decided), ended=False)
    deployment = Deployment(pipeline="p", target="p.py", fragments={}, settings={}, scheme=fixed)
    assert scheme_in_use(agreed, deployment) == SchemeInUse(DEPLOYED, why)


def test_what_was_learnt_from_recoveries_counts() -> None:
    learnt = RecoveryCalibration({DEPLOYED: 3.0})
    assert _marks(explained(Guarantee(recovery=3.5), ASSUMED, learnt))[DEPLOYED] == "too slow"


@examples(40)
@given(
    st.floats(0.02, 60),
    st.none() | st.floats(0, 10),
    st.sampled_from(["exactly-once", "gap"]),
    st.floats(0, 1e10),
    st.floats(0, 1e6),
)
def test_the_one_that_is_marked_is_the_controllers(
    recovery: float, budget: float | None, delivery: str, state: float, rows: float
) -> None:
    guarantee = Guarantee(recovery, delivery, budget)
    seen = replace(ASSUMED, state_bytes=state, rows_per_second=rows)
    chosen = [name for name, mark in _marks(explained(guarantee, seen)).items() if mark.startswith("chosen")]
    controller = SchemeController(guarantee)
    for event in (HostJoined(0, "a"), HostJoined(0, "b"), Measurement(0, seen)):
        controller, _ = decide(controller, event)
    assert chosen == [controller.target]


PIPELINE = """
import holdfast as hf
import polars as pl

kept = hf.Pipeline("kept", guarantee=GUARANTEE)
rows = kept.source("in", hf.source.memory(pl.DataFrame({"k": [1], "ts": [1]})), event_time="ts", time_unit="s")
rows.key_by("k").window(hf.window.tumbling("5s"), name="counts").agg(n=hf.count()).sink("out", hf.sink.collect())
"""


def _command(directory: Path, guarantee: str, *more: str) -> str:
    file = directory / "kept.py"
    file.write_text(PIPELINE.replace("GUARANTEE", guarantee))
    return CliRunner().invoke(main, ["explain", str(file), "--store", str(directory / "store"), *more]).output


def test_the_command_shows_replicas_where_a_recovery_time_is_asked_for(tmp_path: Path) -> None:
    assert "replicas:" not in _command(tmp_path, "None")
    told = _command(tmp_path, 'hf.Guarantee(recovery="3.5 s", budget=1.0)')
    assert "durability: the cheapest policy, among those that restore lost state within 3.5 s" in told
    assert "replicas: no gap in the output longer than 3.5 s, nothing is dropped, for at most 1/h" in told
    assert "assumed, since nothing has been measured yet" in told
    assert "there is 1 host" in _command(tmp_path, "hf.Guarantee(recovery=3.5)", "--hosts", "1")


def test_the_command_reckons_with_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(replace(ASSUMED, state_bytes=4e9).to_json()))
    told = _command(tmp_path, "hf.Guarantee(recovery=3.5)", "--measured", str(path))
    assert "measured: 4000.0 MB of state" in told
    path.write_text('{"state_bytes": -1}')
    assert "state_bytes is -1" in _command(tmp_path, "hf.Guarantee(recovery=3.5)", "--measured", str(path))


@pytest.mark.parametrize("kept", ["[]", "{}", "not json"])
def test_what_was_not_measured_is_refused(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "measured.json"
    path.write_text(kept)
    assert "Invalid value for --measured" in _command(tmp_path, "hf.Guarantee(recovery=3.5)", "--measured", str(path))
