"""Retention: a p-unit stays as long as a retained epoch names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.epoch.retention import Retention
from holdfast.store import DirectoryStore


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    result = DirectoryStore(tmp_path, sync=False)
    for name in "abcde":
        result.write(name, name.encode())
    return result


def left(store: DirectoryStore) -> str:
    return "".join(sorted(store.names()))


def test_what_no_retained_epoch_names_is_removed(store: DirectoryStore) -> None:
    retention = Retention(store, retain=2)
    seen = []
    for epoch, files in enumerate(("a", "ab", "bc", "cd", "de"), start=1):
        retention.add(epoch, frozenset(files))
        seen.append(left(store))
    assert seen == ["abcde", "abcde", "abcde", "bcde", "cde"]


def test_the_epochs_to_keep_are_the_last_ones(store: DirectoryStore) -> None:
    retention = Retention(store, retain=3)
    assert [retention.keep_from(epoch) for epoch in (3, 4, 10)] == [1, 2, 8]


@pytest.mark.parametrize("retain", [0, 1])
def test_the_newest_epoch_is_always_kept(store: DirectoryStore, retain: int) -> None:
    retention = Retention(store, retain)
    assert retention.keep_from(7) == 7
    retention.add(1, frozenset("abc"))
    retention.add(2, frozenset("cde"))
    assert left(store) == "cde"


def test_a_sweep_removes_leftovers_only(store: DirectoryStore) -> None:
    retention = Retention(store, retain=2)
    retention.add(4, frozenset("ab"))
    retention.add(5, frozenset("bd"))
    retention.sweep()
    assert left(store) == "abd"


def test_a_sweep_before_the_first_epoch_removes_all(store: DirectoryStore) -> None:
    Retention(store, retain=2).sweep()
    assert left(store) == ""


def test_a_removal_that_was_interrupted_goes_on(store: DirectoryStore) -> None:
    retention = Retention(store, retain=1)
    retention.add(1, frozenset("ab"))
    store.remove("a")
    retention.add(2, frozenset("c"))
    assert left(store) == "cde"
