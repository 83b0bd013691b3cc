"""Manifests and routing: what is stored of state, and who owns which key positions."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UnknownVersionError
from holdfast.formats import MANIFEST_VERSION
from holdfast.pstream import PUnit
from holdfast.state.manifest import FULL_INTERVAL, MANIFEST_FORM, Interval, Manifest, Piece
from holdfast.state.routing import Routing
from strategies import examples

positions = st.integers(0, 2**64)
intervals = st.tuples(positions, positions).map(lambda pair: Interval(min(pair), max(pair)))
names = st.text(min_size=1).filter(lambda name: not {"/", "\0"} & set(name) and name != "..")
punits = st.builds(PUnit, names, st.integers(0), st.integers(0), st.text("0123456789abcdef"))
pieces = st.builds(Piece, st.text(), punits, intervals, intervals, st.integers(), st.integers())
manifests = st.builds(Manifest, intervals, st.lists(pieces, max_size=5).map(tuple))


@examples(50)
@given(manifest=manifests)
def test_a_manifest_survives_json(manifest):
    assert MANIFEST_FORM.decode(MANIFEST_FORM.encode(manifest)) == manifest


@pytest.mark.parametrize("version", [MANIFEST_VERSION + 1, 0, None, "1"])
def test_an_unknown_version_is_refused(version):
    stored = {**json.loads(MANIFEST_FORM.encode(Manifest())), "version": version}
    with pytest.raises(UnknownVersionError) as caught:
        MANIFEST_FORM.decode(json.dumps(stored))
    assert caught.value.cure


@examples(20)
@given(manifest=manifests, table=st.text(), new=st.lists(pieces, max_size=3))
def test_putting_in_a_table_leaves_the_others(manifest, table, new):
    new = [Piece(table, piece.punit, piece.interval, piece.span) for piece in new]
    changed = manifest.with_table(table, new)
    assert changed.table(table) == tuple(new)
    others = [piece for piece in manifest.pieces if piece.table != table]
    assert [piece for piece in changed.pieces if piece.table != table] == others


@examples(60)
@given(partitions=st.integers(1, 40), at=st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**64 - 1])))
def test_every_position_has_one_owner(partitions, at):
    routing = Routing.of(Routing.even(partitions).stored())
    assert routing.partitions == partitions
    owners = routing.assign(np.array(at, dtype=np.uint64)).tolist()
    for position, owner in zip(at, owners, strict=True):
        assert routing.interval(owner).lo <= position < routing.interval(owner).hi
    edges = [routing.interval(part) for part in range(partitions)]
    assert (edges[0].lo, edges[-1].hi) == (0, 1 << 64)
    assert all(left.hi == right.lo for left, right in pairwise(edges))


def test_bounds_belong_to_the_partition_they_begin():
    routing = Routing.even(4)
    starts = np.array(routing.bounds, dtype=np.uint64)
    assert routing.assign(starts).tolist() == [0, 1, 2, 3]
    assert routing.assign(starts[1:] - np.uint64(1)).tolist() == [0, 1, 2]


def test_intervals_contain_one_another():
    assert FULL_INTERVAL.contains(Interval(5, 9))
    assert not Interval(5, 9).contains(FULL_INTERVAL)
    assert Interval(5, 9).contains(Interval(5, 9))
