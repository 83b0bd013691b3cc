"""The primitives over operator state: copies are verified, what is moved is always found, nothing else is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptPUnitError
from holdfast.pstream import punit, read_punit, write_punit
from holdfast.state.manifest import Interval, Manifest, Piece, read_piece
from holdfast.state.partition import (
    merge_routing_state,
    partition_buffer_state,
    partition_processing_state,
    partition_routing_state,
)
from holdfast.state.position import key_positions
from holdfast.state.primitives import (
    backup_location,
    backup_state,
    checkpoint_state,
    persist_state,
    replay_buffer_state,
    restore_state,
    spill_state,
    unspill_state,
)
from holdfast.state.routing import Routing
from holdfast.store import Private, Tiers, durable

MINE = Private("the test's own")


@pytest.fixture
def tiers(tmp_path):
    punit.close_all()
    return Tiers(tmp_path / "s" / "state", tmp_path / "v", (tmp_path / "b0", tmp_path / "b1"), sync=False)


def state_of(tiers, operators=("a", "b"), partitions=2, tier="volatile"):
    """A state with one p-unit of some hundred bytes per partition."""
    state = {}
    for operator in operators:
        parts = []
        routing = Routing.even(partitions)
        for part in range(partitions):
            name = f"{operator}/t/{part}.arrow"
            unit = write_punit(tiers.at(tier), name, pl.DataFrame({"x": range(50), "of": [f"{name}"] * 50}))
            span = routing.interval(part)
            parts.append(Manifest(span, (Piece("t", unit, span, span),)))
        state[operator] = tuple(parts)
    return checkpoint_state(7, state, {"in": {"offset": 70}})


def test_a_checkpoint_is_incremental(tiers):
    first = state_of(tiers)
    size = sum(unit.bytes for unit in first.units().values())
    assert persist_state(first, tiers) == size
    assert persist_state(first, tiers) == 0
    more = write_punit(tiers.at("volatile"), "a/t/new.arrow", pl.DataFrame({"x": [1]}))
    whole = Interval(0, 1 << 64)
    grown = checkpoint_state(8, {**first.state, "c": (Manifest(whole, (Piece("t", more, whole, whole),)),)}, {})
    assert persist_state(grown, tiers) == more.bytes


def test_the_directories_of_a_checkpoint_have_names_that_last_whoever_has_made_them(tiers, tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(durable, "sync_directory", synced.append)
    checkpoint = state_of(tiers, ("a",), 1)
    (tmp_path / "s/state/a/t").mkdir(parents=True)  # another host, a moment ago
    persist_state(checkpoint, replace(tiers, sync=True))
    names = ("..", ".", "s", "s/state", "s/state/a", "s/state/a/t")  # the first has the name of the store itself
    assert {(tmp_path / name).resolve() for name in names} <= {place.resolve() for place in synced}


def test_a_checkpoint_of_a_spoilt_p_unit_is_none(tiers):
    checkpoint = state_of(tiers, ("a",), 1)
    path = tiers.volatile / "a/t/0.arrow"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptPUnitError):
        persist_state(checkpoint, tiers)
    assert not list(tiers.stable.rglob("*.arrow"))


def test_a_backup_lies_where_the_hash_says_and_older_ones_are_released(tiers):
    checkpoint = state_of(tiers)
    persist_state(checkpoint, tiers)
    backup_state(checkpoint, tiers, MINE)
    for operator, parts in checkpoint.state.items():
        for number, manifest in enumerate(parts):
            location = backup_location(operator, number, 2)
            for piece in manifest.pieces:
                held = [(place / piece.punit.name).exists() for place in tiers.backups]
                assert held == [location == 0, location == 1]
    smaller = checkpoint_state(8, {"a": checkpoint.state["a"]}, {})
    assert backup_state(smaller, tiers, MINE, keep=checkpoint.units()) == 0
    assert len([path for place in tiers.backups for path in place.rglob("b/t/*")]) == 2, "a base keeps its backup"
    assert backup_state(smaller, tiers, MINE) == 0
    assert not [path for place in tiers.backups for path in place.rglob("b/t/*")]


def test_the_load_of_backups_is_spread():
    chosen = [backup_location("counts", part, 4) for part in range(400)]
    assert all(60 < chosen.count(location) < 140 for location in range(4))


def test_what_is_lost_is_restored_from_its_backup(tiers):
    checkpoint = state_of(tiers, tier="stable")
    backup_state(checkpoint, tiers, MINE)
    lost = tiers.stable / "a/t/1.arrow"
    sound = lost.read_bytes()
    lost.unlink()
    assert restore_state(checkpoint, tiers) == len(sound)
    assert lost.read_bytes() == sound
    assert restore_state(checkpoint, tiers) == 0


def test_a_spoilt_p_unit_is_made_sound_from_its_backup(tiers):
    checkpoint = state_of(tiers, tier="stable")
    backup_state(checkpoint, tiers, MINE)
    unit = checkpoint.units()["b/t/0.arrow"]
    path = tiers.stable / unit.name
    sound = path.read_bytes()
    path.write_bytes(b"rubbish")
    assert read_punit(tiers.at("stable"), unit)["x"].to_list() == list(range(50))
    assert path.read_bytes() == sound


def test_without_any_sound_copy_nothing_is_used(tiers):
    checkpoint = state_of(tiers, tier="stable")
    backup_state(checkpoint, tiers, MINE)
    unit = checkpoint.units()["a/t/0.arrow"]
    for place in (tiers.stable, *tiers.backups):
        if (place / unit.name).exists():
            (place / unit.name).write_bytes(b"rubbish")
    with pytest.raises(CorruptPUnitError, match="checksum"):
        read_punit(tiers.at("stable"), unit)


def test_state_beyond_its_budget_goes_to_disk_and_comes_back(tiers):
    checkpoint = state_of(tiers)
    units = list(checkpoint.units().values())
    budget = units[0].bytes * 2
    gone = spill_state(units, tiers, budget, MINE)
    assert len(gone) == 2
    assert sum(path.stat().st_size for path in tiers.volatile.rglob("*.arrow")) <= budget
    for unit in units:
        assert read_punit(tiers.at("volatile"), unit).height == 50
    assert unspill_state(units, tiers, budget, MINE) == []
    assert sorted(unspill_state(units, tiers, budget * 10, MINE)) == sorted(gone)
    assert not list(tiers.spilled.rglob("*.arrow"))


def test_what_only_older_epochs_need_is_spilled_first(tiers):
    for epoch in (3, 1, 2):
        write_punit(tiers.at("volatile"), f"a/t/{epoch:012d}-0.arrow", pl.DataFrame({"x": range(50)}))
    newest = write_punit(tiers.at("volatile"), f"a/t/{0:012d}-0.arrow", pl.DataFrame({"x": range(50)}))
    gone = spill_state([newest], tiers, newest.bytes, MINE)
    assert gone == [f"a/t/{epoch:012d}-0.arrow" for epoch in (1, 2, 3)]
    assert [path.name for path in tiers.volatile.rglob("*.arrow")] == [f"{0:012d}-0.arrow"]


def test_what_is_on_the_stable_tier_is_not_spilled_twice(tiers):
    checkpoint = state_of(tiers)
    persist_state(checkpoint, tiers)
    assert len(spill_state(list(checkpoint.units().values()), tiers, 0, MINE)) == 4
    assert not list(tiers.spilled.rglob("*.arrow"))
    for unit in checkpoint.units().values():
        assert read_punit(tiers.at("volatile"), unit).height == 50


def test_only_whole_histories_are_replayed():
    plans = {epoch: {"epoch": epoch} for epoch in (4, 5, 6)}
    assert list(replay_buffer_state(plans, 3, 6)) == [4, 5, 6]
    with pytest.raises(KeyError):
        replay_buffer_state(plans, 2, 6)


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), max_size=60), st.integers(1, 7))
def test_buffered_rows_go_to_the_partition_that_owns_them(keys, partitions):
    rows = pl.DataFrame({"k": pl.Series(keys, dtype=pl.Int64), "at": range(len(keys))})
    positions = key_positions([rows["k"]], rows.height)
    routing = Routing.even(partitions)
    cut = dict(partition_buffer_state(rows, positions, routing))
    assert sum(part.height for part in cut.values()) == rows.height
    for number, part in cut.items():
        assert part["at"].is_sorted()
        owned = routing.interval(number)
        for position in key_positions([part["k"]], part.height):
            assert owned.lo <= int(position) < owned.hi


@settings(deadline=None)
@given(st.integers(1, 6), st.data())
def test_split_and_merge_of_routing_are_inverse(partitions, data):
    routing = Routing.even(partitions)
    number = data.draw(st.integers(0, partitions - 1))
    owned = routing.interval(number)
    at = data.draw(st.lists(st.integers(owned.lo + 1, owned.hi - 1), max_size=4, unique=True))
    split = partition_routing_state(routing, number, at)
    assert split.partitions == partitions + len(at)
    assert merge_routing_state(split, number, number + len(at)) == routing
    with pytest.raises(ValueError, match="does not split"):
        partition_routing_state(routing, number, [owned.lo])


def test_partitions_that_share_a_p_unit_see_each_row_once(tiers):
    keys = pl.Series("k", range(500))
    positions = key_positions([keys], 500)
    order = np.argsort(positions)
    frame = pl.DataFrame({"__hf_pos": positions[order], "k": keys[order]})
    whole = Interval(0, 1 << 64)
    unit = write_punit(tiers.at("stable"), "x/t/0.arrow", frame)
    parts = partition_processing_state([Manifest(whole, (Piece("t", unit, whole, whole),))], Routing.even(3))
    seen = [read_piece(tiers.at("stable"), piece)["k"].to_list() for part in parts for piece in part.pieces]
    assert sorted(key for keys in seen for key in keys) == list(range(500))
    assert [part.interval for part in parts] == [Routing.even(3).interval(i) for i in range(3)]
