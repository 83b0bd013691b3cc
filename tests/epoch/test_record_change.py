"""A record that is written as a change is the record: whatever changed, however it is read, and after any rewrite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import Base, EpochRecord
from holdfast.epoch.record_change import (
    WHOLE_EPOCHS,
    WHOLE_SECONDS,
    RecordChain,
    RecordChange,
    record_of,
    records_of,
)
from holdfast.epoch.transaction import Transaction, committing
from holdfast.errors import CorruptRecordError, UnknownVersionError
from holdfast.meta import Commit, MetaStore
from holdfast.pstream import PUnit
from holdfast.state.manifest import Interval, Manifest, Piece
from holdfast.state.routing import Routing
from holdfast.state.state_change import KeptPieces, changed_state, state_change

FULL = Interval(0, 1 << 64)


def piece(name: str, table: str = "t", interval: Interval = FULL) -> Piece:
    return Piece(table, PUnit(f"{name}.arrow", 3, 100, "0" * 16), interval, FULL, low=1, high=2)


def record(*parts: str, at: int = 0, **more: object) -> EpochRecord:
    """A record with a partition for each text, which has a piece for each letter."""
    routing = Routing.even(len(parts))
    manifests = tuple(
        Manifest(routing.interval(number), tuple(piece(f"{number}-{letter}") for letter in letters))
        for number, letters in enumerate(parts)
    )
    made = EpochRecord({"s": {"at": at}}, {"s": False}, {"s": at}, {"op": routing}, {"op": manifests})
    return structs.replace(made, **more)


pieces = st.lists(
    st.builds(
        piece,
        st.sampled_from("abcdefgh"),
        st.sampled_from(["t", "u"]),
        st.sampled_from([FULL, Interval(0, 1 << 63), Interval(1 << 63, 1 << 64)]),
    ),
    max_size=8,
).map(tuple)
states = st.dictionaries(
    st.sampled_from(["a", "b"]), st.lists(st.builds(Manifest, st.just(FULL), pieces), min_size=1, max_size=3).map(tuple)
)


@given(states, states)
def test_a_state_after_its_change_is_the_state(before: dict, after: dict) -> None:
    change = state_change(before, after)
    if change is None:
        assert {name: len(parts) for name, parts in before.items()} != {name: len(p) for name, p in after.items()}
    else:
        assert changed_state(before, change) == after


def test_a_change_names_only_what_is_new() -> None:
    before, after = record("abc", "de"), record("abcx", "de")
    after = structs.replace(after, state={"op": (after.state["op"][0], before.state["op"][1])})
    change = state_change(before.state, after.state)
    assert change is not None
    assert list(change["op"]) == [0], "the other partition is the same object"
    assert change["op"][0].pieces == (KeptPieces(0, 3), piece("0-x"))


def test_the_size_of_a_change_does_not_grow_with_the_state() -> None:
    sizes = []
    for partitions in (2, 512):
        before = record(*["abcdefgh"] * partitions)
        first = replace(before.state["op"][0], pieces=(*before.state["op"][0].pieces, piece("new")))
        after = structs.replace(before, state={"op": (first, *before.state["op"][1:])})
        change = RecordChange.between(before, after)
        assert change is not None
        assert RecordChange.decode(change.encode()).after(before) == after
        sizes.append(len(change.encode()))
    assert sizes[1] < 1.1 * sizes[0]


def test_other_partitions_are_written_whole() -> None:
    assert RecordChange.between(record("a", "b"), record("a", "b", "c")) is None


def test_a_change_that_does_not_fit_is_found() -> None:
    change = RecordChange.between(record("abc"), record("abcd"))
    assert change is not None
    with pytest.raises(CorruptRecordError, match="partition 0 does not have"):
        change.after(record("a"))


def test_a_change_of_a_newer_version_is_refused() -> None:
    change = RecordChange.between(record("abc"), record("abcd"))
    assert change is not None
    with pytest.raises(UnknownVersionError):
        RecordChange.decode(change.encode().replace('"version":1', '"version":9'))


# in the store


class Written:
    """A store into which epochs are planned and committed by one run."""

    def __init__(self, meta: MetaStore) -> None:
        self.meta, self.lease, self.chain = meta, meta.acquire("p", "me", 0.0, 1e9), RecordChain()
        self.records: dict[int, EpochRecord] = {}

    def commit(self, epoch: int, made: EpochRecord, now: float = 1.0, forget: tuple[int, ...] = ()) -> None:
        with committing(self.meta, self.lease, epoch) as transaction:
            transaction.plan(EpochPlan({}, made.positions, made.done, (1, 1), made.routing), now)
        with committing(self.meta, self.lease, epoch) as transaction:
            text = transaction.record(made, now, chain=self.chain, forget=forget)
        assert text is not None
        self.chain.wrote(epoch, made, text, now)
        self.records[epoch] = made

    def check(self) -> None:
        """Every way to read gives the whole records."""
        commits = self.meta.commits("p")
        assert records_of(commits) == self.records
        assert {commit.epoch: record_of(commit) for commit in commits} == self.records
        for epoch, made in self.records.items():
            found = self.meta.look_up("p", epoch)
            assert isinstance(found, Commit)
            assert record_of(found) == made
        last = self.meta.last_commit("p")
        assert last is not None
        assert record_of(last) == self.records[last.epoch]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    meta = MetaStore(tmp_path, sync=False)
    yield Written(meta)
    meta.close()


def letters(epoch: int) -> tuple[str, str]:
    """One partition gets a piece in each epoch, and its pieces are merged now and then; the other one stays."""
    return "m" * (epoch // 8) + "abcdefgh"[: epoch % 8], "xyz"


def test_records_are_whole_now_and_then_and_read_the_same(written: Written) -> None:
    for epoch in range(1, 2 * WHOLE_EPOCHS + 5):
        base = Base(epoch - 1) if epoch % 3 else None
        written.commit(epoch, record(*letters(epoch), at=epoch, base=base, reason=f"r{epoch}"))
    written.check()
    whole = [commit.epoch for commit in written.meta.commits("p") if not commit.since]
    assert whole == [2 * WHOLE_EPOCHS + 1, WHOLE_EPOCHS + 1, 1]


def test_records_of_long_epochs_are_whole(written: Written) -> None:
    for epoch in range(1, 6):
        written.commit(epoch, record(*letters(epoch)), now=epoch * WHOLE_SECONDS)
    assert not any(commit.since for commit in written.meta.commits("p"))


def test_a_record_that_is_written_again_changes_no_other(written: Written) -> None:
    for epoch in range(1, 9):
        written.commit(epoch, record(*letters(epoch), at=epoch))
    again = record("q", "xyz", at=4)
    with committing(written.meta, written.lease, 4) as transaction:
        transaction.record_again(again)
    written.records[4] = again
    written.check()
    with committing(written.meta, written.lease, 3) as transaction:
        transaction.record_again(record("z", "z", at=3), forget=[1, 2])
    written.records[3] = record("z", "z", at=3)
    for epoch in (1, 2):
        del written.records[epoch]
    written.check()


def test_renamed_operators_have_their_records(written: Written) -> None:
    for epoch in range(1, 5):
        written.commit(epoch, record(*letters(epoch), at=epoch))
    with committing(written.meta, written.lease) as transaction:
        transaction.rename({}, {"op": "other"})
    written.records = {epoch: made.renamed({}, {"op": "other"}) for epoch, made in written.records.items()}
    written.check()


def test_what_a_record_goes_back_to_is_missed(written: Written) -> None:
    for epoch in range(1, 5):
        written.commit(epoch, record(*letters(epoch), at=epoch), forget=(2,) if epoch == 4 else ())
    with pytest.raises(CorruptRecordError, match="epoch 4 of pipeline 'p' needs that of epoch 2, which is missing"):
        written.meta.last_commit("p")


def test_a_commit_that_does_not_count_leaves_the_chain(written: Written) -> None:
    written.commit(1, record("a", "b"))

    class KilledError(Exception):
        pass

    def killed(transaction: Transaction, made: EpochRecord) -> None:
        transaction.plan(EpochPlan({}, made.positions, made.done, (1, 1), made.routing), 1.0)
        transaction.record(made, 1.0, chain=written.chain)
        raise KilledError

    with pytest.raises(KilledError), committing(written.meta, written.lease, 2) as transaction:
        killed(transaction, record("lost", "b"))
    written.commit(2, record("ac", "b"))
    written.check()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "ab", "abc", "bc", "", "d"]), st.booleans()), min_size=1, max_size=12))
def test_any_records_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, bool]]
) -> None:
    meta = MetaStore(tmp_path_factory.mktemp("any"), sync=False)
    try:
        run = Written(meta)
        for epoch, (pieces_of, wider) in enumerate(made, start=1):
            run.commit(epoch, record(pieces_of, "x", *(["w"] if wider else []), at=epoch))
        run.check()
    finally:
        meta.close()
