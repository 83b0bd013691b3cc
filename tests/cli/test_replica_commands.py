"""What `holdfast scheme`, `holdfast status` and `holdfast explain` tell of replicas, and what they refuse."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.group import main
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.plan.cuts import FragmentLinks
from holdfast.replica.deployment import Deployment
from holdfast.replica.fragment_notes import ConfigurationNote, Decision, Divergence, StoredNotes
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.scheme_report import ASSUMED
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Activate, Beat, Enlist
from stored_texts import save_shape


class Store:
    """Two hosts have their seats, and the secondary is what the scheme says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = MetaStore(path, sync=False)
        self.agreement = Agreement(self.meta, "host:1:0.00", time.time)
        deployed = Deployment(
            pipeline="shop", target="f.py", fragments={"shop": FragmentLinks()}, settings={}, hosts=("a", "b")
        )
        ReplicaMeta(self.meta).deploy("shop", deployed.encode())
        self.agreement.open("shop", ACTIVE_STANDBY)
        first = Membership("a", 1, self.agreement, Timing(), lambda why: None)
        first.sessions = True
        first.serve("shop")
        first.beat()
        self.agreement.ask({"shop": [Beat("b", 1, 0, None), Enlist("b", 1, None, None)]})
        self.agreement.ask({"shop": [Beat("b", 1, 0, ACTIVE_STANDBY)]})
        seat = self.agreement.look(["shop"])["shop"].seats.primary
        assert seat is not None
        save_shape(self.meta, self.agreement.lease("shop", seat.token, shared=False), "{}")

    def invoke(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--store", str(self.path)])

    def scheme(self) -> Scheme:
        return self.agreement.look(["shop"])["shop"].seats.scheme

    def replicas(self) -> dict[str, Any]:
        shown = json.loads(self.invoke("status", "shop", "--json").output)
        found: dict[str, Any] = shown["replicas"]
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.meta.close()


def test_the_scheme_and_who_has_the_seats_are_shown(store: Store) -> None:
    shown = store.invoke("scheme", "shop")
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("shop: active standby")
    assert "a" in shown.output
    found = store.replicas()
    assert (found["scheme"], found["primary"], found["secondary"], found["ready"]) == ("active standby", "a", "b", True)


def test_a_step_of_the_wheel_is_taken_and_a_leap_is_refused(store: Store) -> None:
    refused = store.invoke("scheme", "shop", "deployed")
    assert refused.exit_code == 1
    assert "no step from active standby to deployed" in refused.output
    assert "passive standby hot → passive standby cold → deployed" in " ".join(refused.output.split())
    assert "--all-the-way" in refused.output
    assert store.scheme() is ACTIVE_STANDBY
    assert store.invoke("scheme", "shop", "passive standby hot").exit_code == 0
    assert store.scheme() is HOT_STANDBY
    assert store.replicas()["ready"] is False, "the secondary is not that yet"
    assert store.invoke("scheme", "shop", "deployed", "--all-the-way").exit_code == 0
    assert store.scheme() is DEPLOYED


def test_one_waits_for_the_secondary_and_says_when_it_does_not_come(store: Store) -> None:
    late = store.invoke("scheme", "shop", "passive standby hot", "--wait", "0.2")
    assert late.exit_code == 1
    assert "was not ready within 0.2 s" in late.output
    still = store.invoke("scheme", "shop", "passive replication", "--all-the-way", "--wait", "0.2")
    assert still.exit_code == 1, "the secondary has not left"


def test_unknown_schemes_and_pipelines_are_named(store: Store) -> None:
    unknown = store.invoke("scheme", "shop", "lukewarm")
    assert unknown.exit_code == 1
    assert "passive standby hot" in unknown.output
    other = store.invoke("scheme", "stop")
    assert other.exit_code == 1
    assert "they run: shop" in other.output


def test_what_is_active_by_load_is_shown_and_cannot_be_turned(store: Store) -> None:
    seats = store.agreement.look(["shop"])["shop"].seats
    assert store.agreement.ask({"shop": [Activate(seats.orders, ("a",), ("a", "b"))]})["shop"].done == (True,)
    assert store.replicas()["active"] == ["a"]
    refused = store.invoke("scheme", "shop", "active replication")
    assert refused.exit_code == 1
    assert "the completeness guarantee decides" in refused.output


PIPELINE = """
import holdfast as hf
import polars as pl

shop = hf.Pipeline("shop", guarantee=hf.Guarantee(recovery="2 s"))
rows = shop.source("in", hf.source.memory(pl.DataFrame({"k": [1], "ts": [1]})), event_time="ts", time_unit="s")
rows.key_by("k").window(hf.window.tumbling("5s"), name="counts").agg(n=hf.count()).sink("out", hf.sink.collect())
"""


def _explained(store: Store, *more: str) -> str:
    file = store.path / "shop.py"
    file.write_text(PIPELINE)
    shown = store.invoke("explain", str(file), *more)
    assert shown.exit_code == 0, shown.output
    return " ".join(shown.output.split())


def test_explain_shows_what_hosts_keep_and_have_decided(store: Store) -> None:
    decided = [Decision(1e9 + number, None, f"sentence {number}") for number in range(5)]
    decided[4] = replace(decided[4], to="active standby")
    store.agreement.note("shop", StoredNotes(decisions=tuple(decided)))
    told = _explained(store)
    assert "'shop': active standby: a is the primary, b is the secondary" in told
    assert "/h in use" in told
    assert "chosen" not in told
    assert "assumed, since nothing has been measured yet" in told
    assert "why: the controller chose it" in told
    assert "to active standby: sentence 4" in told
    assert "sentence 2" in told
    assert "sentence 1" not in told
    assert "2001-09-09" in told


def test_explain_reckons_with_the_measurements_hosts_and_divergence_of_the_store(store: Store) -> None:
    seen, odd = replace(ASSUMED, state_bytes=4e9), Divergence("b", 7, "rows")
    known = StoredNotes(measured=seen, calibration={}, hosts=("a", "b", "c"), diverged=odd)
    store.agreement.note("shop", known)
    told = _explained(store)
    assert "measured: 4000.0 MB of state" in told
    assert told.count("not possible") == 2
    assert "in use, though it is not possible" in told
    assert "b differed in epoch 7" in told
    store.agreement.note("shop", StoredNotes(hosts=("a",)))
    assert _explained(store).count("not possible") == 5
    assert _explained(store, "--hosts", "2").count("not possible") == 2


def test_explain_says_when_the_scheme_is_fixed(store: Store) -> None:
    fixed = Deployment(
        pipeline="shop", target="f.py", fragments={"shop": FragmentLinks()}, settings={}, scheme=ACTIVE_STANDBY
    )
    ReplicaMeta(store.meta).deploy("shop", fixed.encode())
    assert "why: set by --scheme; the controller only predicts" in _explained(store)


def test_status_shows_the_input_configuration_and_why(store: Store) -> None:
    decided = Decision(1_000.0, "High", "from Low to High: clicks 8/s")
    told = ConfigurationNote(name="High", rates=(8.0,), decisions=(decided,))
    store.agreement.note("shop", StoredNotes(configuration=told))
    assert store.replicas()["configuration"] == {
        "name": "High", "rates": [8.0], "decisions": [asdict(decided)], "above": 0, "recent": [],
    }  # fmt: skip
    shown = store.invoke("status", "shop").output
    assert "input configuration" in shown
    assert "from Low to High: clicks 8/s" in " ".join(shown.split())
