"""The suites find what is wrong: for each promise, a connector that breaks it, and the message that says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.source import Chunk, Position, Slice, Take

ROWS = pl.DataFrame({"n": range(20), "text": [f"row {n}" for n in range(20)]})


class Numbers(hf.source.Source):
    """A source as it should be, in methods that faults replace."""

    schema = ROWS.schema
    bounded = True
    keeps = True

    def start(self) -> Position:
        return {"row": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        first = int(position["row"])
        last = min(first + max(1, rows), 20)
        slices = (Slice(first, last - first, {"first": first, "last": last}),) if last > first else ()
        return Take(slices, {"row": last}, last == 20)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        yield Chunk(ROWS[piece.where["first"] : piece.where["last"]])


class LosesARow(Numbers):
    """The last row of a slice that is not the last one."""

    def read(self, piece: Slice) -> Iterator[Chunk]:
        last = piece.where["last"]
        yield Chunk(ROWS[piece.where["first"] : last - (last % 7 == 0)])


class Overlaps(Numbers):
    def take(self, position: Position, rows: int, pieces: int) -> Take:
        take = super().take(position, rows, pieces)
        return Take(tuple(Slice(p.base, p.rows, {**p.where, "first": max(0, p.base - 1)}) for p in take.slices),
                    take.position, take.done)  # fmt: skip


class Remembers(Numbers):
    """Where it is, instead of looking at the position."""

    def __init__(self) -> None:
        self.row = 0

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        take = super().take({"row": self.row}, rows, pieces)
        self.row = int(take.position["row"])
        return take


class Shuffles(Numbers):
    def read(self, piece: Slice) -> Iterator[Chunk]:
        for chunk in super().read(piece):
            yield Chunk(chunk.frame.sample(fraction=1.0, shuffle=True))


CALLS: list[int] = []


class ReadsOnce(Numbers):
    """What is read is gone, as from a queue."""

    def read(self, piece: Slice) -> Iterator[Chunk]:
        CALLS.append(piece.base)
        yield from super().read(piece) if CALLS.count(piece.base) < 3 else ()


class OfThisProcess(Numbers):
    def read(self, piece: Slice) -> Iterator[Chunk]:
        for chunk in super().read(piece):
            yield Chunk(chunk.frame.with_columns(n=pl.col("n") + (0 if CALLS is HERE.get("calls") else 1)))


HERE: dict[str, object] = {}


class Unstored(Numbers):
    def start(self) -> Position:
        return {"row": 0, "seen": (1, 2)}


class Hidden(Numbers):
    """Rows that do not fit go without a word."""

    def read(self, piece: Slice) -> Iterator[Chunk]:
        for chunk in super().read(piece):
            yield Chunk(chunk.frame.filter(pl.col("n") % 5 > 0))


class BasesStay(Numbers):
    def take(self, position: Position, rows: int, pieces: int) -> Take:
        take = super().take(position, rows, pieces)
        return Take(tuple(Slice(0, p.rows, p.where) for p in take.slices), take.position, take.done)


class OtherColumns(Numbers):
    def narrowed(self, need: Any) -> hf.source.Source:
        narrow = Numbers()
        narrow.read = lambda piece: iter([Chunk(ROWS[piece.where["first"] : piece.where["last"]].reverse())])  # type: ignore[method-assign]
        return narrow


def test_a_source_that_keeps_its_promises_passes() -> None:
    hf.testing.check_source(Numbers, ROWS, crashes=3)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (LosesARow, r"rows are the same however the input is cut(.|\n)*1 row lost: \(6, 'row 6'\)|2 rows lost"),
        (Overlaps, "rows are the same however the input is cut(.|\n)*rows before it go up to"),
        (Remembers, "rows are the same however the input is cut(.|\n)*20 rows lost"),
        (Shuffles, "another order"),
        (ReadsOnce, "read again|lost"),
        (OfThisProcess, "another process reads the same rows"),
        (Unstored, "positions are JSON(.|\n)*comes back from JSON"),
        (Hidden, "all rows of the input are read(.|\n)*4 rows lost"),
        (BasesStay, "bases must grow with the rows"),
        (OtherColumns, "columns that nothing reads(.|\n)*another order"),
    ],
)
def test_a_source_that_breaks_a_promise_is_told_which_and_where(source: type[Numbers], told: str) -> None:
    CALLS.clear()
    HERE["calls"] = CALLS
    one = source()
    make: Callable[[], hf.source.Source] = source if source is not Remembers else lambda: one
    with pytest.raises(AssertionError, match=told) as caught:
        hf.testing.check_source(make, ROWS, crashes=3, seed=1)
    assert "seed=1" in str(caught.value)
    assert source.__name__ in str(caught.value)


def test_bad_rows_that_are_not_told_are_told() -> None:
    with pytest.raises(AssertionError, match=r"reported one by one(.|\n)*0 rows given, 2 expected"):
        hf.testing.check_source(Numbers, bad=2)


def test_a_source_that_hangs_with_its_server_is_told() -> None:
    free = threading.Event()
    free.set()

    class Waits(Numbers):
        def read(self, piece: Slice) -> Iterator[Chunk]:
            free.wait()
            yield from super().read(piece)

        def __reduce__(self) -> Any:
            return Numbers, ()

    @contextmanager
    def hang() -> Iterator[None]:
        free.clear()
        yield
        free.set()

    with pytest.raises(AssertionError, match=r"read while the server hangs(.|\n)*did not come back within 0.2 s"):
        hf.testing.check_source(Waits, hang=hang, deadline=0.2)


def test_a_source_that_loses_what_comes_late_is_told() -> None:
    given = [ROWS]

    class Grows(Numbers):
        bounded = False

        def take(self, position: Position, rows: int, pieces: int) -> Take:
            first, last = int(position["row"]), sum(frame.height for frame in given)
            last = min(last, first + rows)
            slices = (Slice(first, last - first, {"first": first, "last": last}),) if last > first else ()
            return Take(slices, {"row": last})

        def read(self, piece: Slice) -> Iterator[Chunk]:
            yield Chunk(ROWS[piece.where["first"] : piece.where["last"]])  # and not what was added

        def __reduce__(self) -> Any:
            return Numbers, ()

    def feed() -> pl.DataFrame:
        given.append(ROWS[:5])
        return ROWS[:5]

    with pytest.raises(AssertionError, match=r"rows that arrive while a source is read(.|\n)*5 rows lost"):
        hf.testing.check_source(Grows, feed=feed, crashes=1)


# sinks


class Folder(hf.sink.TaskSink):
    """A sink as it should be: prepared files are moved by one rename of a directory."""

    guarantee = "exactly once: one rename"

    def __init__(self, path: Path) -> None:
        self.path, self.staging = path, path.with_name(f"{path.name}.staging")
        self.staging.mkdir(parents=True, exist_ok=True)

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> hf.sink.Receipt:
        name = f"{epoch}-{part}-{attempt}"
        rows.write_parquet(self.staging / name)
        return {"name": name}

    def files(self, receipt: hf.sink.Receipt) -> Mapping[Path, int]:
        path = self.staging / receipt["name"]
        return {path: path.stat().st_size if path.exists() else 0}

    def publish(self, epoch: int, receipts: Sequence[hf.sink.Receipt]) -> None:
        draft = self.staging / f"draft-{epoch}"
        for receipt in receipts:
            if (self.staging / receipt["name"]).exists():
                draft.mkdir(exist_ok=True)
                (self.staging / receipt["name"]).rename(draft / receipt["name"])
        if draft.exists():
            self.path.mkdir(exist_ok=True)
            draft.rename(self.path / f"epoch-{epoch}")

    def sweep(self, before_epoch: int, right: hf.sink.Right) -> None:
        for left in self.staging.iterdir():
            if left.is_file() and int(left.name.partition("-")[0]) < before_epoch:
                left.unlink()


class ShowsFileByFile(Folder):
    def publish(self, epoch: int, receipts: Sequence[hf.sink.Receipt]) -> None:
        (self.path / f"epoch-{epoch}").mkdir(parents=True, exist_ok=True)
        for receipt in receipts:
            if (self.staging / receipt["name"]).exists():
                (self.staging / receipt["name"]).rename(self.path / f"epoch-{epoch}" / receipt["name"])


class Copies(Folder):
    """Publishes once more what is asked for once more."""

    def publish(self, epoch: int, receipts: Sequence[hf.sink.Receipt]) -> None:
        place = self.path / f"epoch-{epoch}-{time.time_ns()}"
        place.mkdir(parents=True)
        for receipt in receipts:
            (place / receipt["name"]).write_bytes((self.staging / receipt["name"]).read_bytes())


class ShowsAtOnce(Folder):
    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> hf.sink.Receipt:
        (self.path / "early").mkdir(parents=True, exist_ok=True)
        rows.write_parquet(self.path / "early" / f"{epoch}-{part}-{attempt}")
        return {"name": "nothing"}

    def files(self, receipt: hf.sink.Receipt) -> Mapping[Path, int]:
        return {}


class PublishesAll(Folder):
    """Whatever was prepared, also by attempts that lost."""

    def publish(self, epoch: int, receipts: Sequence[hf.sink.Receipt]) -> None:
        there = [{"name": file.name} for file in self.staging.iterdir() if file.is_file()]
        super().publish(epoch, there)


class NeverSweeps(Folder):
    def sweep(self, before_epoch: int, right: hf.sink.Right) -> None:
        pass


class SweepsAll(Folder):
    def sweep(self, before_epoch: int, right: hf.sink.Right) -> None:
        for left in [*self.path.glob("*/*"), *self.staging.glob("*")]:
            left.unlink()


class NotThereAgain(Folder):
    """A draft of before is in the way."""

    def publish(self, epoch: int, receipts: Sequence[hf.sink.Receipt]) -> None:
        if any((self.staging / receipt["name"]).exists() for receipt in receipts):
            draft = self.staging / f"draft-{epoch}"
            draft.mkdir()
            for receipt in receipts:
                (self.staging / receipt["name"]).rename(draft / receipt["name"])
            self.path.mkdir(exist_ok=True)
            draft.rename(self.path / f"epoch-{epoch}")


def in_folder(path: Path) -> pl.DataFrame:
    files = [file for file in path.glob("*/*") if file.is_file()]
    return pl.concat([pl.read_parquet(file) for file in files]) if files else pl.DataFrame()


def test_a_sink_that_keeps_its_promises_passes(tmp_path: Path) -> None:
    hf.testing.check_sink(lambda place: Folder(tmp_path / place), lambda place: in_folder(tmp_path / place), crashes=8)


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (
            ShowsFileByFile,
            r"publish crashes at any line(.|\n)*line \d+ of .*publish(.|\n)*a reader sees \d of 8",
        ),
        (Copies, "a publication that comes again has no effect(.|\n)*8 rows too many"),
        (ShowsAtOnce, "what is prepared is seen when it is published(.|\n)*before publish(.|\n)*a reader sees"),
        (PublishesAll, "too many"),
        (NeverSweeps, "is still there"),
        (SweepsAll, "after sweep(.|\n)*12 rows lost"),
        (NotThereAgain, r"publish crashes at any line(.|\n)*File exists|No such file"),
    ],
)
def test_a_sink_that_breaks_a_promise_is_told_which_and_where(sink: type[Folder], told: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=told) as caught:
        hf.testing.check_sink(
            lambda place: sink(tmp_path / place), lambda place: in_folder(tmp_path / place), seed=1, crashes=1000
        )
    assert "seed=1" in str(caught.value)


class Book(hf.sink.DriverSink):
    """Writes under the number of the epoch."""

    def __init__(self, pages: dict[object, pl.DataFrame], guarantee: str, *, by_epoch: bool, late: bool) -> None:
        self.pages, self.guarantee, self.by_epoch, self.late = pages, guarantee, by_epoch, late

    def _write(self, epoch: int, rows: pl.DataFrame) -> None:
        self.pages[epoch if self.by_epoch else len(self.pages)] = rows

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        if not self.late:
            self._write(epoch, rows)

    def after_commit(self, epoch: int, rows: pl.DataFrame) -> None:
        if self.late:
            self._write(epoch, rows)


@pytest.mark.parametrize(
    ("says", "by_epoch", "late", "told"),
    [
        ("exactly once", True, False, None),
        ("exactly once", False, False, "too many(.|\n)*the guarantee is exactly-once"),
        ("at least once", False, False, None),
        ("at least once", True, True, "lost(.|\n)*the guarantee is at-least-once"),
        ("at most once", True, True, None),
        ("at most once", False, False, "too many(.|\n)*the guarantee is at-most-once"),
        ("none", False, True, None),
    ],
)
def test_what_is_checked_is_the_guarantee_that_a_sink_declares(
    says: str, by_epoch: bool, late: bool, told: str | None
) -> None:
    books: dict[str, dict[object, pl.DataFrame]] = {}

    def make(place: str) -> hf.sink.Sink:
        return Book(books.setdefault(place, {}), f"{says}: it says so", by_epoch=by_epoch, late=late)

    def read(place: str) -> pl.DataFrame:
        pages = list(books.get(place, {}).values())
        return pl.concat(pages) if pages else pl.DataFrame()

    if told is None:
        hf.testing.check_sink(make, read, crashes=3)
    else:
        with pytest.raises(AssertionError, match=told):
            hf.testing.check_sink(make, read, crashes=1000)


def test_a_guarantee_that_says_nothing_is_asked_for() -> None:
    with pytest.raises(hf.errors.DeclarationError, match="does not say what is to be checked"):
        hf.testing.check_sink(lambda place: Book({}, "good", by_epoch=True, late=True), lambda place: pl.DataFrame())
    with pytest.raises(hf.errors.WrongTypeError, match="check_sink was given a str"):
        hf.testing.check_sink(lambda place: "sink", lambda place: pl.DataFrame())  # type: ignore[arg-type, return-value]
