"""Keyed state against a dict: upserts, deletes, lookups and merges; also where different keys share a position."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.errors import OperatorError
from holdfast.state import position, tables
from holdfast.state.levels import background_merge, levels_of, splice
from holdfast.state.manifest import MANIFEST_FORM, Interval, Manifest, Piece
from holdfast.state.tables import KeyedTable, Writer
from holdfast.store import DirectoryStore
from strategies import examples, string_keys

KEYS = {"k": pl.Int64, "s": pl.String}
SCHEMA = pl.Schema({**KEYS, "v": pl.Int64})
keys = st.tuples(st.none() | st.integers(-3, 6), string_keys)
some_keys = st.lists(keys, max_size=8, unique=True)


def weak_positions(columns, rows=None):
    """Eight positions for all keys there are: collisions everywhere."""
    return position.key_positions(columns, rows) >> np.uint64(61)


class KeyedTableMachine(RuleBasedStateMachine):
    """The table, as manifests and files, and the dict it must equal."""

    positions = staticmethod(position.key_positions)

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(tables, "key_positions", self.positions)
        self.manifest = Manifest()
        self.model: dict[tuple[object, object], int] = {}
        self.written = 0
        self.merging = None

    @initialize(most=st.sampled_from([2, 3, 12]))
    def open(self, most):
        store = DirectoryStore(Path(self._directory.name), False)
        self.table = KeyedTable("t", ("k", "s"), SCHEMA, store, most)

    def writer(self) -> Writer:
        self.written += 1
        return Writer(self.table.store, "op", f"{self.written}")

    @rule(upserts=some_keys, deletes=some_keys, value=st.integers(0, 1_000_000))
    def write(self, upserts, deletes, value):
        deletes = [key for key in deletes if key not in upserts]
        rows = pl.DataFrame([(*key, value + i) for i, key in enumerate(upserts)], schema=SCHEMA, orient="row")
        gone = pl.DataFrame(deletes, schema=KEYS, orient="row")
        self.manifest = self.table.write(self.manifest, self.writer(), rows, gone)
        self.model.update({key: value + i for i, key in enumerate(upserts)})
        for key in deletes:
            self.model.pop(key, None)

    @rule(wanted=some_keys)
    def lookup(self, wanted):
        frame = pl.DataFrame(wanted, schema=KEYS, orient="row")
        found = self.table.lookup(self.manifest, frame, self.positions([frame["k"], frame["s"]], frame.height))
        assert sorted(found.rows(), key=repr) == sorted(
            ((*key, self.model[key]) for key in wanted if key in self.model), key=repr
        )

    @rule(most=st.integers(1, 3), size=st.sampled_from([300, 1_000, 100_000]))
    def begin_merge(self, most, size):
        """As beside the epochs: from the manifest of now, to be put in its place later."""
        merge = background_merge(self.manifest.table("t"), self.manifest.interval, most, 1, size)
        if merge is None:
            return
        writer, pieces = self.writer(), []
        for interval in merge.intervals:
            seen = [replace(piece, interval=piece.interval.both(interval)) for piece in merge.pieces]
            frames = [self.table.read(piece) for piece in seen if piece.interval is not None]
            rows = self.table.merged(frames, oldest=merge.oldest, keep=None)
            pieces += [writer.write(interval, "t", rows)] if rows.height else []
        self.merging = (merge, pieces)

    @rule()
    def end_merge(self):
        if self.merging is not None:
            merge, pieces = self.merging
            spliced = splice(self.manifest.table("t"), merge.pieces, pieces)
            self.manifest = self.manifest if spliced is None else self.manifest.with_table("t", spliced)
            self.merging = None

    @rule()
    def reload(self):
        self.manifest = MANIFEST_FORM.decode(MANIFEST_FORM.encode(self.manifest))

    @invariant()
    def scan_is_the_model(self):
        if hasattr(self, "table"):
            rows = self.table.scan(self.manifest).rows()
            assert sorted(rows, key=repr) == sorted(((*key, v) for key, v in self.model.items()), key=repr)
            assert len(levels_of(self.manifest.table("t"))) <= self.table.most_pieces

    def teardown(self) -> None:
        self._patch.undo()
        self._directory.cleanup()


class WeakPositionsMachine(KeyedTableMachine):
    positions = staticmethod(weak_positions)


TestKeyedTable = KeyedTableMachine.TestCase
TestKeyedTable.settings = settings(examples(20), stateful_step_count=25)
TestKeyedTableWithCollidingPositions = WeakPositionsMachine.TestCase
TestKeyedTableWithCollidingPositions.settings = settings(examples(20), stateful_step_count=25)


@pytest.fixture
def table(tmp_path):
    return KeyedTable("t", ("k", "s"), SCHEMA, DirectoryStore(tmp_path, False))


def filled(table, count):
    rows = pl.DataFrame([(i, f"s{i}", i) for i in range(count)], schema=SCHEMA, orient="row")
    return table.write(Manifest(), Writer(table.store, "op", "first"), rows, None)


@pytest.mark.parametrize("positions", [position.key_positions, weak_positions], ids=["strong", "weak"])
def test_a_key_written_twice_at_once_is_refused(table, positions, monkeypatch):
    monkeypatch.setattr(tables, "key_positions", positions)
    rows = pl.DataFrame([(1, "a", 1), (2, "b", 2), (1, "a", 3)], schema=SCHEMA, orient="row")
    with pytest.raises(OperatorError, match="twice"):
        table.write(Manifest(), Writer(table.store, "op", "x"), rows, None)


def test_a_narrower_interval_shows_its_keys_and_no_others(table):
    """How a partition is split: two manifests name the same p-unit with other intervals."""
    manifest = filled(table, 500)
    middle = 1 << 63
    found = []
    for interval in (Interval(0, middle), Interval(middle, 1 << 64)):
        pieces = [Piece(p.table, p.punit, interval, p.span) for p in manifest.pieces]
        rows = table.scan(Manifest(interval, tuple(pieces)))
        assert 0 < rows.height < 500
        at = position.key_positions([rows["k"], rows["s"]])
        assert all(interval.lo <= p < interval.hi for p in at.tolist())
        found += rows.rows()
    assert sorted(found) == sorted(table.scan(manifest).rows())


def test_merges_drop_rows_that_need_not_be_kept(table):
    manifest = Manifest()
    for number in range(40):
        rows = pl.DataFrame([(number, "s", number)], schema=SCHEMA, orient="row")
        keep = pl.col("v") > number - 5
        manifest = table.write(manifest, Writer(table.store, "op", str(number)), rows, None, keep)
    assert manifest.rows < 25
    assert set(table.scan(manifest)["v"].to_list()) >= set(range(35, 40))


def test_a_tombstone_hides_older_rows_until_the_oldest_is_merged(table):
    manifest = filled(table, 3)
    gone = pl.DataFrame([(1, "s1")], schema=KEYS, orient="row")
    manifest = table.write(manifest, Writer(table.store, "op", "second"), None, gone)
    for number in range(60):
        rows = pl.DataFrame([(100 + number, "x", 0)], schema=SCHEMA, orient="row")
        manifest = table.write(manifest, Writer(table.store, "op", f"more{number}"), rows, None)
        assert (1, "s1") not in {row[:2] for row in table.scan(manifest).rows()}
