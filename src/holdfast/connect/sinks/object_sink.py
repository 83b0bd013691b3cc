"""Output files in an object store, which become visible whole epoch by whole epoch: Parquet, NDJSON, Arrow IPC.

A task puts its rows under a name of its own, beside the output. To publish, a host copies what was committed to the
output, within the store, and merges what is small; then it puts the manifest (`object_output.py`), once. Names and rows
of files follow from what was committed. So every step can be interrupted and done again, by several hosts at once, and
a host that is late changes nothing.

Not promised: any order of the rows between the files of a publication; that a file which a reader without manifests has
removed stays away until the meta store knows that it was published.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from holdfast.connect.base import Owner, Receipt, TaskSink
from holdfast.connect.sinks.object_output import ObjectOutput, OutputFile, OutputManifest
from holdfast.connect.sinks.part_content import SinkFormat, check_columns, encoded_part
from holdfast.connect.sinks.part_files import merge_files, merged_groups
from holdfast.connect.sinks.rhythm import Rhythm
from holdfast.connect.sinks.staging_directory import safe_name
from holdfast.errors import CorruptFileError, DeclarationError
from holdfast.store import Right

__all__ = ["ObjectSink"]

_AT_ONCE = 4


class ObjectSink(TaskSink):
    """See `parquet`, `ndjson` and `arrow`."""

    guarantee = "exactly once: whole epochs, each of them in one manifest, which is put once"

    def __init__(self, output: ObjectOutput, format: SinkFormat, rhythm: Rhythm) -> None:
        self.output = output
        self.format = format
        self.rhythm = rhythm
        self._owner: Owner | None = None
        if not output.key:
            raise DeclarationError(
                f"{format}(): {output} is a whole bucket",
                cure=f"give a directory in it, e.g. {output}/output: staged files are kept next to it",
            )

    @property
    def place(self) -> str:
        return str(self.output)

    def accept(self, schema: pl.Schema) -> None:
        check_columns(schema)

    def attach(self, owner: Owner) -> None:
        self._owner = owner

    def describe(self) -> str:
        return f"{self.format} files in {self.output}"

    def check(self, committed: int, retained: object) -> None:
        self.output.claim(self._attached)

    @property
    def _attached(self) -> Owner:
        assert self._owner is not None, "attach comes first"
        return self._owner

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        name = safe_name(part)
        if rows.height == 0:
            return {"part": name, "rows": 0, "bytes": 0}
        content = encoded_part(rows, self.format)
        file = f"{epoch}/{name}-{safe_name(attempt)}.{self.format}"
        self.output.bucket.put(self._staged(file), content)
        return {"part": name, "file": file, "rows": rows.height, "bytes": len(content)}

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        winners = [receipt for receipt in receipts if receipt["rows"]]
        if not winners:
            return
        self.output.confirm(self._attached)
        planned = OutputManifest(epoch, self._attached, tuple(receipt["file"] for receipt in winners), ())
        if self.output.is_published(planned):
            return
        try:
            files = self._show(epoch, winners)
        except FileNotFoundError as error:
            if self.output.is_published(planned):  # another host was faster, and has cleaned up
                return
            raise CorruptFileError(
                f"an object prepared for {self.output}, epoch {epoch}, is missing",
                cure=f"the epoch is committed but its rows are no longer under {self._address}; if they were removed by"
                " hand, or by a rule of the bucket, put them back, otherwise run the pipeline again from an epoch"
                " before this one",
                epoch=epoch,
            ) from error
        self.output.publish(OutputManifest(epoch, self._attached, planned.prepared, tuple(files)))

    def _show(self, epoch: int, winners: Sequence[Receipt]) -> list[OutputFile]:
        """Copy what was prepared to where it is read. A file has the number of the first receipt in it."""
        sizes = [(Path(receipt["file"]), int(receipt["bytes"])) for receipt in winners]
        several = len({path.parent for path, _ in sizes}) > 1
        groups = list(merged_groups(sizes)) if several else [[path] for path, _ in sizes]
        jobs, first = [], 0
        for group in groups:
            jobs.append((first, winners[first : first + len(group)]))
            first += len(group)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [file for files in pool.map(lambda job: self._show_some(epoch, *job), jobs) for file in files]

    def _show_some(self, epoch: int, first: int, some: Sequence[Receipt]) -> list[OutputFile]:
        target = self.output.target(epoch, first, self.format)
        if len(some) > 1 and self._merged(some, target):
            return [OutputFile(target, sum(int(receipt["rows"]) for receipt in some))]
        files = []
        for number, receipt in enumerate(some, first):
            target = self.output.target(epoch, number, self.format)
            self.output.bucket.copy(self._staged(receipt["file"]), f"{self.output.key}/{target}")
            files.append(OutputFile(target, int(receipt["rows"])))
        return files

    def _merged(self, some: Sequence[Receipt], target: str) -> bool:
        """Put one file with the rows of all; False if they do not fit together, because the pipeline's columns have
        changed between their epochs."""
        with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
            paths = [Path(place) / f"{number}.{self.format}" for number in range(len(some))]
            for path, receipt in zip(paths, some, strict=True):
                content = self.output.bucket.get(self._staged(receipt["file"]))
                if content is None:
                    raise FileNotFoundError(receipt["file"])
                path.write_bytes(content)
            merged = Path(place) / f"merged.{self.format}"
            if not merge_files(paths, merged):
                return False
            self.output.bucket.put(f"{self.output.key}/{target}", merged.read_bytes())
        return True

    def forget(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.discard(epoch, receipts, right)

    def discard(self, epoch: int, receipts: Sequence[Receipt], right: Right) -> None:
        self.output.bucket.delete([self._staged(receipt["file"]) for receipt in receipts if receipt["rows"]], right)

    def sweep(self, before_epoch: int, right: Right) -> None:
        place = self.output.staged(self._attached)
        keys = [stored.key for stored in self.output.bucket.list(place, deep=True)]
        self.output.bucket.delete([key for key in keys if _epoch(key.removeprefix(f"{place}/")) < before_epoch], right)

    def _staged(self, file: str) -> str:
        return f"{self.output.staged(self._attached)}/{file}"

    @property
    def _address(self) -> str:
        return self.output.bucket.address(self.output.staged(self._attached))


def _epoch(name: str) -> int:
    return int(name.partition("/")[0])
