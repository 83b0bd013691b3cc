"""Nothing of a store is removed without a right, and no right outlives the lease it comes from."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

import holdfast
from holdfast.errors import LeaseLostError
from holdfast.meta import Lease, LeaseHolder, MetaStore, ReplicaMeta, SeatsUpdate
from holdfast.pstream import write_punit
from holdfast.state.manifest import Interval, Manifest, Piece
from holdfast.state.primitives import Checkpoint, backup_state, checkpoint_state, spill_state, unspill_state
from holdfast.store import DirectoryStore, Private, Right, Tiers, remove_directory, remove_files, remove_tree

SOURCE = Path(holdfast.__file__).parent
KEEPERS = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name not in ("cli", "demo", "ui"))
REMOVING = {"unlink", "rmtree", "rmdir", "removedirs"}
ELSEWHERE = {
    "store/removal.py": "the place where files are removed",
    "connect/sinks/ownership.py": "a draft of its own",
    "connect/sinks/part_files.py": "a draft of its own",
    "connect/sources/replay.py": "drafts in a temporary directory",
    "spark/class_archive.py": "an archive of Java's classes in the user's cache",
    "spark/java.py": "a temporary directory of Java's",
    "spark/reach.py": "tokens under names of its own",
    "spark/session.py": "temporary directories of sessions, each locked by its owner, and old logs",
    "scale/cluster.py": "directories of a cluster of the user's own",
    "testkit/quick_store.py": "temporary directories of tests",
    "watch/report_files.py": "reports of drills and shadows that are too many, on which nothing depends",
    "watch/event_log.py": "events that are too old or too many, on which nothing depends",
}
WHOLE = Interval(0, 1 << 64)


def removals(path: Path) -> list[int]:
    """The lines that remove files by themselves."""
    tree = ast.parse(path.read_text())
    names = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in REMOVING}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "remove":
            names |= {node.lineno} if isinstance(node.value, ast.Name) and node.value.id == "os" else set()
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
            names |= {node.lineno for imported in node.names if imported.name in {*REMOVING, "remove"}}
    return sorted(names)


def test_no_module_that_keeps_a_store_removes_files_by_itself() -> None:
    found = {
        str(path.relative_to(SOURCE)): lines
        for package in KEEPERS
        for path in (SOURCE / package).rglob("*.py")
        if (lines := removals(path))
    }
    assert set(found) == set(ELSEWHERE), found


@pytest.mark.parametrize(
    "removing",
    [DirectoryStore.remove, remove_files, remove_tree, remove_directory, backup_state, spill_state, unspill_state],
)
def test_a_removal_asks_for_a_right(removing: Callable[..., object]) -> None:
    """The type checker sees to it that there is one wherever these are called."""
    asked = inspect.signature(removing).parameters["right"]
    assert asked.default is inspect.Parameter.empty
    assert asked.annotation == "Right"


class Gone:
    """A right that goes after some checks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def check(self) -> None:
        if not self.left:
            raise LeaseLostError("gone", cure="none")
        self.left -= 1


def test_what_is_removed_is_decided_before_the_right_is_checked(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, sync=False)
    store.write("old", b"")

    class Late:
        def check(self) -> None:
            store.write("new", b"of the next owner")

    store.remove(store.names(), Late())
    assert list(store.names()) == ["new"]


def test_a_right_is_checked_again_while_much_is_removed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, sync=False)
    for number in range(250):
        store.write(f"{number}", b"")
    with pytest.raises(LeaseLostError):
        store.remove(sorted(store.names()), Gone(after=2))
    assert 0 < len(list(store.names())) < 250


@pytest.mark.parametrize("remove", [remove_tree, remove_directory, lambda place, right: remove_files([place], right)])
def test_nothing_is_removed_without_a_right_that_holds(tmp_path: Path, remove: object) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(LeaseLostError):
        remove(place, Gone(after=0))  # type: ignore[operator]
    assert place.exists()
    remove_directory(place, Private("the test's own"))
    assert not place.exists()


# two runs of one pipeline, the first of which does not know of the second


@pytest.fixture
def meta(where: Path | str) -> Iterator[MetaStore]:
    opened = MetaStore(where, sync=False)
    yield opened
    opened.close()


@pytest.fixture
def tiers(tmp_path: Path) -> Tiers:
    return Tiers(tmp_path / "p" / "state", tmp_path / "memory", (tmp_path / "one", tmp_path / "two"), sync=False)


def state_after(tiers: Tiers, epoch: int) -> Checkpoint:
    """The state of an epoch: two partitions, in p-units that no other epoch has."""
    store = tiers.at("volatile")
    units = [write_punit(store, f"a/t/{epoch:012d}-{part}.arrow", pl.DataFrame({"x": range(20)})) for part in range(2)]
    parts = tuple(Manifest(WHOLE, (Piece("t", unit, WHOLE, WHOLE),)) for unit in units)
    return checkpoint_state(epoch, {"a": parts}, {})


def backed_up(tiers: Tiers) -> set[str]:
    return {name for number in range(len(tiers.backups)) for name in tiers.backup(number).names()}


def taken_over(meta: MetaStore) -> tuple[tuple[Lease, Right], tuple[Lease, Right]]:
    first = meta.acquire("p", "first", 0.0, 30.0)
    second = meta.acquire("p", "second", 31.0, 30.0)
    return (first, meta.right(first)), (second, meta.right(second))


def test_a_run_that_was_taken_over_removes_no_backup_of_the_next_one(meta: MetaStore, tiers: Tiers) -> None:
    (_, stale), (_, right) = taken_over(meta)
    old, new = state_after(tiers, 1), state_after(tiers, 2)
    backup_state(new, tiers, right)
    wanted = backed_up(tiers)
    assert wanted == set(new.units())
    with pytest.raises(LeaseLostError):
        backup_state(old, tiers, stale)
    assert wanted <= backed_up(tiers)
    backup_state(new, tiers, right)
    assert backed_up(tiers) == wanted, "what the first one has copied meanwhile goes"


def test_a_run_that_was_taken_over_moves_nothing_out_of_memory(meta: MetaStore, tiers: Tiers) -> None:
    (_, stale), (_, right) = taken_over(meta)
    units = list(state_after(tiers, 1).units().values())
    memory = DirectoryStore(tiers.volatile, False)
    with pytest.raises(LeaseLostError):
        spill_state(units, tiers, 0, stale)
    assert set(memory.names()) == {unit.name for unit in units}
    assert len(spill_state(units, tiers, 0, right)) == 2
    with pytest.raises(LeaseLostError):
        unspill_state(units, tiers, 1 << 30, stale)
    assert {unit.name for unit in units} <= set(DirectoryStore(tiers.spilled, False).names())


def test_the_right_of_a_secondary_ends_with_its_seat(meta: MetaStore) -> None:
    rows = ReplicaMeta(meta)
    rows.open("p", "{}", "{}")

    def seated(sharing: bool) -> None:
        rows.change(["p"], lambda *_: SeatsUpdate("{}", 5, 6, sharing, LeaseHolder(5, "first", 30.0)))

    right = meta.right(Lease("p", "second", 6, shared=True))
    seated(sharing=True)
    right.check()
    seated(sharing=False)
    with pytest.raises(LeaseLostError):
        right.check()
