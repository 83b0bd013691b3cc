"""What `holdfast status` tells of a pipeline, from what its store says."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast.epoch.record import EpochRecord
from holdfast.formats import EPOCH_VERSION
from holdfast.meta import Lease, MetaStore, Repairs, ReplicaMeta
from holdfast.meta.lease_holder import this_process
from holdfast.plan.cuts import FragmentLinks
from holdfast.pstream import PUnit
from holdfast.replica.deployment import Deployment
from holdfast.replica.seats import Seats
from holdfast.state.manifest import FULL_INTERVAL, Manifest, Piece
from holdfast.state.routing import Routing
from stored_texts import carry_out, commit_epoch, plan_epoch, plan_text, save_shape, text

ROWS = 7_114


class Store:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta = MetaStore(path, sync=False)
        self.lease: Lease = self.meta.acquire("shop", "me:1:0.00", 0.0, 1.0)
        save_shape(self.meta, self.lease, "{}")

    def commit(self, record: EpochRecord, **plan: Any) -> None:
        epoch = self.meta.last_epoch("shop") + 1
        plan = {
            "slices": {},
            "positions": {},
            "done": {},
            "tasks": [1],
            "routing": {},
            "version": EPOCH_VERSION,
            **plan,
        }
        plan_epoch(self.meta, self.lease, epoch, plan_text(plan), 1.0)
        commit_epoch(self.meta, self.lease, epoch, record.encode(), 2.0)

    def shown(self, *more: str) -> str:
        told = CliRunner().invoke(main, ["status", *more, "--store", str(self.path)], env={"COLUMNS": "250"})
        assert told.exit_code == 0, told.output
        return told.output

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.shown("shop", "--json"))
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.meta.close()


def record(position: Any = None) -> EpochRecord:
    """One partition whose state is one p-unit."""
    piece = Piece("t", PUnit("u", ROWS, 1_000_000, "c"), FULL_INTERVAL, FULL_INTERVAL)
    state = {"counts": (Manifest(FULL_INTERVAL, (piece,)),)}
    return EpochRecord({"in": position or {}}, {"in": False}, {"in": None}, {"counts": Routing.even(1)}, state)


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7])
def test_partitions_that_share_p_units_do_not_multiply_the_rows_of_state(store: Store, partitions: int) -> None:
    split = record().routed({"counts": Routing.even(partitions)})
    assert len(split.state["counts"]) == partitions
    store.commit(split)
    counts = store.json()["state"]["counts"]
    parts = counts.pop("parts")
    assert counts == {"partitions": partitions, "rows": ROWS, "bytes": 1_000_000}
    assert [part["begin"] for part in parts] == pytest.approx([number / partitions for number in range(partitions)])
    assert {size for part in parts for size in part["levels"]["t"]} == {1_000_000 // partitions}
    assert f"{ROWS:,} rows" in store.shown("shop")
    assert ("in 1 partition" if partitions == 1 else f"in {partitions} partitions") in store.shown("shop")
    assert "7.1 k rows" in store.shown()


def test_of_state_that_one_partition_has_rewritten_the_others_count_what_they_see(store: Store) -> None:
    split = record().routed({"counts": Routing.even(2)})
    first, second = split.state["counts"]
    own = Piece("t", PUnit("v", 10, 100, "c"), first.interval, first.interval)
    store.commit(EpochRecord(**{**fields(split), "state": {"counts": (Manifest(first.interval, (own,)), second)}}))
    assert store.json()["state"]["counts"]["rows"] == 10 + ROWS // 2


def fields(found: EpochRecord) -> dict[str, Any]:
    return {name: getattr(found, name) for name in EpochRecord.__slots__}


def test_a_growing_directory_is_summed_up(store: Store) -> None:
    names = {f"file-{number:05}": number for number in range(900)}
    place = {"base": 0, "file": None, "at": 0, "last": "file-00899", "floor": -1, "recent": names}
    store.commit(record({**place, "count": 12_345, "skipped": ["file-00007"]}))
    shown = store.shown("shop")
    assert "12,345 files taken, the last one file-00899; 1 file skipped" in shown
    assert "file-00500" not in shown
    begun = {**place, "file": {"name": "file-00899"}, "at": 1_000, "count": 1}
    store.commit(record(begun))
    assert "1 file taken, the last one file-00899; file-00899 is read up to 1,000" in store.shown("shop")


def test_the_version_of_a_lookup_table_is_shown_with_its_age(store: Store) -> None:
    unit = {"name": "0123456789abcdef-1.arrow", "rows": 12, "bytes": 400, "checksum": "c"}
    version = {"unit": unit, "mark": None, "taken": 1_000_000_000.0, "seen": time.time() - 180}
    store.commit(record(), tables={"names": version})
    store.meta.acquire("shop", this_process(), time.time(), 60.0)  # it runs
    shown = store.shown("shop")
    assert "table of names" in shown
    assert "version 0123456789ab with 12 rows, read 2001-09-" in shown
    assert re.search(r"\b3 min \d+ s ago", shown)
    assert store.json()["tables"]["names"]["unit"]["rows"] == 12


def test_what_sources_have_to_tell_and_what_people_did_is_shown(store: Store) -> None:
    repairs = Repairs(store.meta)
    repairs.notice(store.lease, ["source 'in': the directory /inn does not exist"], 1.0)
    done = repairs.ask("shop", text({"do": "skip", "epoch": 7}), "test data", 2.0)
    outcome = {
        "epoch": 7,
        "rows": {"in": 1},
        "files": [{"source": "in", "file": "b", "from": 0, "to": 1000}],
        "more_files": 0,
    }
    carry_out(store.meta, store.lease, [], {}, {done: text(outcome)}, 3.0)
    repairs.ask("shop", text({"do": "replan", "epochs": [8]}), "mended", 4.0)
    shown = store.shown("shop")
    assert "/inn does not exist" in shown
    assert "skip epoch 7; done, about 1 row of in: b from 0 to 1,000; reason: test data" in shown
    assert "plan again: 1 epoch (8); pending until the next start; reason: mended" in shown
    assert store.json()["notices"] == ["source 'in': the directory /inn does not exist"]


def test_a_pipeline_that_hosts_are_told_to_run_is_known_before_it_has_begun(store: Store) -> None:
    deployed = Deployment(
        pipeline="new", target="f.py", fragments={"new": FragmentLinks()}, settings={}, hosts=("a", "b")
    )
    ReplicaMeta(store.meta).deploy("new", deployed.encode())
    ReplicaMeta(store.meta).open("new", Seats().encode(), "{}")
    shown = store.shown("new")
    assert "not started yet" in shown
    assert "no host runs it now" in shown
    assert "new" in store.shown()
