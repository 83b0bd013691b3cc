"""Keyed state that stays in memory, against a dict: whatever was dropped, merged, split or written by others."""

from __future__ import annotations

import gc
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.errors import OperatorError
from holdfast.hidden_columns import POSITION
from holdfast.operators import key_numbers, keyed_state
from holdfast.operators.keyed_state import open_state
from holdfast.operators.state_merge import KeyedMerge, merge_pieces
from holdfast.pstream.punit import close_all
from holdfast.state import position, resident_cache, resident_table, tables
from holdfast.state.levels import background_merge, splice
from holdfast.state.manifest import MANIFEST_FORM, Interval, Manifest
from holdfast.state.partition import partition_processing_state
from holdfast.state.piece_lineage import added_pieces, merged_stem
from holdfast.state.position_index import PositionIndex
from holdfast.state.resident_cache import ResidentCache, TableId, made_resident
from holdfast.state.routing import Routing
from holdfast.state.tables import KeyedTable, Writer
from holdfast.store import DirectoryStore
from strategies import examples, string_keys

KEYS = {"k": pl.Int64(), "s": pl.String(), "f": pl.Float64()}
VALUES = {"n": pl.Int64(), "name": pl.String(), "share": pl.Float64(), "tags": pl.List(pl.Int64)}
SCHEMA = pl.Schema({**KEYS, **VALUES})
NAMES = tuple(KEYS)

floats = st.sampled_from([None, math.nan, 0.5, -1.0, math.inf])
keys = st.tuples(st.none() | st.integers(-3, 6), string_keys, floats)
some_keys = st.lists(keys, max_size=10, unique_by=repr)
values = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=5),
    floats,
    st.none() | st.lists(st.integers(0, 3), max_size=3),
)
Model = dict[str, tuple[Any, ...]]
"""By the key's text, as NaN is not itself: the row."""


def frame(rows: list[tuple[Any, ...]], columns: dict[str, pl.DataType]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=columns, orient="row")


def weak_positions(columns, rows=None):
    """Eight positions for all keys there are: collisions everywhere."""
    return position.key_positions(columns, rows) >> np.uint64(61) << np.uint64(61)


class ResidentMachine(RuleBasedStateMachine):
    """One operator's partitions, step by step as tasks would run them: committed, dropped, run again, or elsewhere."""

    positions = staticmethod(position.key_positions)

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._patch = pytest.MonkeyPatch()
        for module in (tables, keyed_state, key_numbers):
            self._patch.setattr(module, "key_positions", self.positions)
        self._patch.setattr(resident_cache, "_EARLY", 1 << 40)  # resident from the second step on
        self._patch.setattr(resident_table, "_LEAST_DEAD", 4)
        self.resident = ResidentCache(1 << 30)
        self._patch.setattr(keyed_state, "RESIDENT", self.resident)
        self.routing = Routing.even(1)
        self.parts: list[Manifest] = [Manifest()]
        self.model: Model = {}
        self.written = 0
        self.merging = None

    @initialize(most=st.sampled_from([2, 12]), few=st.sampled_from([0, 64, 1 << 40]))
    def open(self, most, few):
        self._patch.setattr(resident_table, "_FEW", few)
        self.table = KeyedTable("t", NAMES, SCHEMA, DirectoryStore(Path(self._directory.name), False), most)

    def writer(self, stem: str | None = None) -> Writer:
        self.written += 1
        return Writer(self.table.store, "op", stem or f"{self.written}")

    def step(self, rows, deleted, base, *, resident=True) -> tuple[list[Manifest], Model]:
        """A step of every partition; the keys of `rows` come, all but every third get a row, `deleted` ones go."""
        parts, model = list(base[0]), dict(base[1])
        came = frame([row[:3] for row in rows] * 2, KEYS)
        places = self.positions([came[name] for name in NAMES], came.height)
        came = came.insert_column(0, pl.Series(POSITION, places))
        partition = self.routing.assign(places)
        gone = {repr(key) for key in deleted}
        for number, manifest in enumerate(parts):
            mine = came.filter(pl.Series(partition == number))
            if not mine.height:
                continue
            texts = {repr(key) for key in mine.select(NAMES).rows()}
            upserts = [row for at, row in enumerate(rows) if repr(row[:3]) in texts - gone and at % 3 != 2]
            deletes = [row[:3] for row in rows if repr(row[:3]) in texts & gone]
            upserted, away = frame(upserts, SCHEMA), frame(deletes, KEYS)
            if resident:
                state = open_state(self.table, manifest, self.writer(), mine)
                known = {repr(row[:3]): row for row in state.known.rows()}
                assert repr(known) == repr({text: model[text] for text in known})
                assert known.keys() == model.keys() & texts
                self.numbers_are_those_of_positions(state, mine)
                parts[number] = state.write(upserted, away, None)
            else:
                parts[number] = self.table.write(manifest, self.writer(), upserted, away)
            model |= {repr(row[:3]): row for row in upserts}
            for key in deletes:
                model.pop(repr(key), None)
        return parts, model

    def numbers_are_those_of_positions(self, state, mine):
        expected = key_numbers.KeyNumbers.of(mine, NAMES)
        found = state.keys.find(mine, mine[POSITION].to_numpy())
        if len(np.unique(expected.positions)) == len(expected):
            assert state.keys.frame.equals(expected.frame)
            assert found.tolist() == expected.find(mine, mine[POSITION].to_numpy()).tolist()
        assert state.keys.frame[found].equals(mine.select(NAMES))

    batches = st.lists(st.tuples(keys, values), max_size=10, unique_by=lambda row: repr(row[0]))

    @rule(rows=batches, deleted=some_keys)
    def commit(self, rows, deleted):
        self.parts, self.model = self.step([(*k, *v) for k, v in rows], deleted, (self.parts, self.model))

    @rule(dropped=st.lists(st.tuples(batches, some_keys), min_size=1, max_size=6))
    def drop(self, dropped):
        """Some epochs run one after the other, and none of them is committed."""
        at = (self.parts, self.model)
        for rows, deleted in dropped:
            at = self.step([(*k, *v) for k, v in rows], deleted, at)

    @rule(rows=batches, deleted=some_keys)
    def elsewhere(self, rows, deleted):
        """Another process has run the epoch."""
        base = (self.parts, self.model)
        self.parts, self.model = self.step([(*k, *v) for k, v in rows], deleted, base, resident=False)

    @rule(most=st.integers(1, 3), size=st.sampled_from([300, 1_000, 100_000]), number=st.integers(0, 3))
    def begin_merge(self, most, size, number):
        """As in the background: from the manifest of now, to be put in its place later."""
        number %= len(self.parts)
        merge = background_merge(self.parts[number].table("t"), self.parts[number].interval, most, 1, size)
        if merge is not None:
            writer = self.writer(merged_stem(f"{self.written}", merge.pieces))
            self.merging = number, merge, merge_pieces(KeyedMerge(self.table), merge, writer)

    @rule()
    def end_merge(self):
        if self.merging is not None:
            number, merge, pieces = self.merging
            spliced = splice(self.parts[number].table("t"), merge.pieces, pieces) if number < len(self.parts) else None
            if spliced is not None:
                self.parts = list(self.parts)
                self.parts[number] = self.parts[number].with_table("t", spliced)
            self.merging = None

    @rule(bounds=st.sets(st.integers(1, 2**64 - 1), max_size=3))
    def rescale(self, bounds):
        self.routing = Routing((0, *sorted(bounds)))
        self.parts = list(partition_processing_state(self.parts, self.routing))
        self.resident.close_others(self._directory.name, "op", [part.interval for part in self.parts])

    @rule()
    def reload(self):
        self.parts = [MANIFEST_FORM.decode(MANIFEST_FORM.encode(part)) for part in self.parts]

    @rule(budget=st.sampled_from([0, 3_000, 1 << 30]))
    def change_budget(self, budget):
        self.resident.budget = budget

    @invariant()
    def what_is_stored_is_the_model(self):
        if hasattr(self, "table"):
            rows = [row for part in self.parts for row in self.table.scan(part).rows()]
            assert sorted(map(repr, rows)) == sorted(map(repr, self.model.values()))

    def teardown(self) -> None:
        self._patch.undo()
        self._directory.cleanup()


class SharedPositionsMachine(ResidentMachine):
    positions = staticmethod(weak_positions)


TestResidentState = ResidentMachine.TestCase
TestResidentState.settings = settings(examples(25), stateful_step_count=25)
TestResidentStateWithSharedPositions = SharedPositionsMachine.TestCase
TestResidentStateWithSharedPositions.settings = settings(examples(10), stateful_step_count=20)


@examples(60)
@given(
    positions=st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=400),
    others=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), max_size=20),
    shift=st.sampled_from([0, 1, 40, 60]),
)
def test_positions_are_found_where_they_are_however_they_lie(positions, others, shift):
    line = np.unique(np.array(sorted(positions), dtype=np.uint64) >> np.uint64(shift))
    wanted = np.concatenate([line[::-1], np.array([*others, 0, 2**64 - 1], dtype=np.uint64)])
    place = {int(found): at for at, found in enumerate(line)}
    assert PositionIndex.of(line).find(wanted).tolist() == [place.get(int(one), -1) for one in wanted]


def test_positions_that_lie_in_a_heap_are_found_too():
    line = np.unique(np.append(np.arange(5_000, dtype=np.uint64), np.uint64(2**64 - 1)))
    assert PositionIndex.of(line).find(line).tolist() == list(range(5_001))
    assert PositionIndex.of(line).find(line[1:] - np.uint64(1)).tolist()[-1] == -1


@pytest.fixture
def table(tmp_path):
    return KeyedTable("t", ("k",), pl.Schema({"k": pl.Int64, "n": pl.Int64}), DirectoryStore(tmp_path, False))


def rows_of(names, n):
    return pl.DataFrame({"k": names, "n": [n] * len(names)}, schema={"k": pl.Int64, "n": pl.Int64})


def written(table, manifest, stem, names, n):
    return table.write(manifest, Writer(table.store, "op", stem), rows_of(names, n), None)


class Reads:
    """Counts what is read of a table."""

    def __init__(self, table):
        self.table, self.pieces = table, []

    def __call__(self, piece):
        self.pieces.append(piece.punit.name)
        return self.table.read(piece)


def test_a_merge_in_the_background_needs_no_reading(table):
    first = written(table, Manifest(), "1", range(100), 1)
    second = written(table, first, "2", range(50), 2)
    resident = made_resident(table, second)
    merge = background_merge(second.table("t"), second.interval, 1, 1)
    pieces = merge_pieces(KeyedMerge(table), merge, Writer(table.store, "op", merged_stem("x", merge.pieces)))
    after = written(table, second.with_table("t", pieces), "3", range(10), 3)
    reads = Reads(table)
    assert resident.go_to(after.table("t"), reads)
    assert reads.pieces == ["op/t/3-0.arrow"]
    assert resident.go_to(second.table("t"), reads), "from the merged pieces back to those they were merged from"


def test_pieces_that_only_look_like_a_merge_are_not_taken_for_one(table):
    first = written(table, Manifest(), "1", range(100), 1)
    second = written(table, first, "2", range(50), 2)
    other = written(table, Manifest(), merged_stem("x", first.table("t")), range(5), 5)
    assert added_pieces(second.table("t"), other.table("t")) is None
    assert added_pieces(first.table("t"), other.table("t")) == ()
    narrowed = partition_processing_state([other], Routing((0, 1 << 63)))[0]
    assert added_pieces(first.table("t"), narrowed.table("t")) is None


def test_a_table_goes_back_as_far_as_it_remembers_and_no_further(table):
    manifests = [written(table, Manifest(), "0", range(100), 0)]
    resident = made_resident(table, manifests[0])
    for number in range(1, 8):
        manifests.append(written(table, manifests[-1], str(number), range(number), number))
        assert resident.go_to(manifests[-1].table("t"), table.read)
    assert resident.go_to(manifests[4].table("t"), Reads(table))
    found = resident.rows(resident.held(np.arange(len(resident))))
    assert found.filter(pl.col("n") == 4).height == 4
    assert not found.filter(pl.col("n") > 4).height
    assert not resident.go_to(manifests[1].table("t"), table.read)


def test_a_table_larger_than_the_budget_stays_in_its_pieces(table):
    manifest = written(table, Manifest(), "1", range(10_000), 1)
    name = TableId("here", "op", "t", manifest.interval)
    small, large = ResidentCache(1_000), ResidentCache(10_000_000)
    for cache in (small, large):
        assert cache.take(name, table, manifest, 10_000) is None, "the first step may be the last"
    assert small.take(name, table, manifest, 10_000) is None
    assert large.take(name, table, manifest, 10_000) is not None


def test_a_table_that_does_not_fit_beside_the_others_in_use_does_not_push_them_out(table):
    manifest = written(table, Manifest(), "1", range(10_000), 1)
    names = [TableId("here", f"op{number}", "t", manifest.interval) for number in range(3)]
    cache = ResidentCache(2 * made_resident(table, manifest).nbytes + 1_000)
    cache.budget = max(cache.budget, 2 * 2 * manifest.pieces[0].punit.bytes)
    stayed = []
    for turn in range(6):
        for name in names:
            resident = cache.take(name, table, manifest, 10_000)
            if resident is not None:
                cache.put_back(name, resident)
                stayed += [name] if turn > 2 else []
    assert len(stayed) >= 3
    assert len({id(one) for one in stayed}) < 3


def test_a_key_that_did_not_come_cannot_be_changed(table, monkeypatch):
    monkeypatch.setattr(keyed_state, "RESIDENT", ResidentCache(1 << 30))
    manifest = written(table, Manifest(), "1", range(1_000), 1)
    for number, (upserts, message) in enumerate(
        [([1, 2], None), ([1, 2], None), ([3, 7], "neither in its rows"), ([1, 2], None), ([1, 2], None),
         ([1, 5_000], "neither in its rows"), ([2, 1, 2], "occurs twice")]
    ):  # fmt: skip
        state = open_state(table, manifest, Writer(table.store, "op", f"w{number}"), came([*range(7)] * 100))
        none = pl.DataFrame(schema={"k": pl.Int64})
        if message is None:
            state.write(rows_of(upserts, 2), none, None)
        else:
            with pytest.raises(OperatorError, match=message):
                state.write(rows_of(upserts, 2), none, None)


def came(names):
    rows = pl.DataFrame({"k": names}, schema={"k": pl.Int64})
    return rows.insert_column(0, pl.Series(POSITION, position.key_positions([rows["k"]])))


def test_a_step_goes_on_from_what_the_step_before_it_left(table, monkeypatch):
    monkeypatch.setattr(keyed_state, "RESIDENT", ResidentCache(1 << 30))
    manifest, none = written(table, Manifest(), "1", range(100), 1), pl.DataFrame(schema={"k": pl.Int64})
    for number in range(4):
        state = open_state(table, manifest, Writer(table.store, "op", f"w{number}"), came(range(90, 110)))
        manifest = state.write(rows_of(range(95, 105), number + 2), none, None)
    monkeypatch.setattr(KeyedTable, "read", lambda *_: pytest.fail("nothing is read"))
    state = open_state(table, manifest, Writer(table.store, "op", "last"), came([0, 94, 95, 104, 105]))
    assert sorted(state.known.rows()) == [(0, 1), (94, 1), (95, 5), (104, 5)]


def test_rows_that_are_written_again_are_not_read_again(table):
    first = written(table, Manifest(), "1", range(100), 1)
    again = written(table, Manifest(), "2", range(100), 1)
    cache = ResidentCache(1 << 30)
    name = TableId("here", "op", "t", first.interval)
    for _ in range(2):
        resident = cache.take(name, table, first, 100)
    cache.put_back(name, resident)
    cache.rewritten("here", "op", first, again)
    assert cache.take(name, table, again, 100) is resident


def test_a_table_in_memory_maps_no_file(tmp_path):
    table = KeyedTable("t", ("s",), pl.Schema({"s": pl.String, "name": pl.String}), DirectoryStore(tmp_path, False))
    names = [f"a name that is long enough, {number}" for number in range(1_000)]
    rows = pl.DataFrame({"s": names, "name": names})
    resident = made_resident(table, table.write(Manifest(), Writer(table.store, "op", "1"), rows, None))
    close_all()
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert resident.rows(resident.held(np.arange(len(resident)))).sort("s").equals(rows.sort("s"))


def test_partitions_that_are_gone_leave_nothing_behind(table):
    manifest = written(table, Manifest(), "1", range(100), 1)
    cache = ResidentCache(1 << 30)
    name = TableId("here", "op", "t", manifest.interval)
    for _ in range(2):
        resident = cache.take(name, table, manifest, 100)
    cache.put_back(name, resident)
    cache.close_others("here", "op", [Interval(0, 1 << 63)])
    assert cache.take(name, table, manifest, 100) is None
