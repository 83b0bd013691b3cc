"""A sink as somebody outside of Holdfast would write it: directories of CSV files, a whole publication each.

Tasks write beside what readers see, under names that no other attempt uses. To publish, files are moved into a draft,
and one rename shows it. A file that is no longer there has been moved before, so doing it again has no effect.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import polars as pl

import holdfast as hf
from holdfast.sink import Receipt, Right


class CsvSink(hf.sink.TaskSink):
    """See `csv`."""

    guarantee = "exactly once on one host: a publication is one rename of one directory"

    def __init__(self, path: Path) -> None:
        self.path, self._staging = path, path.with_name(f".{path.name}.staging")

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    def describe(self) -> str:
        return f"CSV files in {self.path}"

    def writes(self) -> Sequence[Path]:
        return (self._staging,)

    def check(self, committed: int, retained: Mapping[int, Sequence[Receipt]]) -> None:
        for place in (self.path, self._staging):
            place.mkdir(parents=True, exist_ok=True)

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        name = f"{epoch:09d}-{quote(part, safe='')}-{quote(attempt, safe='')}.csv"
        text = io.BytesIO()
        rows.write_csv(text)
        with (self._staging / name).open("wb") as file:
            file.write(text.getbuffer())
            os.fsync(file.fileno())
        return {"file": name, "bytes": text.tell()}

    def files(self, receipt: Receipt) -> Mapping[Path, int]:
        return {self._staging / receipt["file"]: receipt["bytes"]}

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        draft = self._staging / f"draft-{epoch}"
        for receipt in receipts:
            if (prepared := self._staging / receipt["file"]).exists():
                draft.mkdir(exist_ok=True)
                os.rename(prepared, draft / receipt["file"])
        if draft.exists():
            os.rename(draft, self.path / f"epoch-{epoch}")

    def sweep(self, before_epoch: int, right: Right) -> None:
        for left in self._staging.glob("*.csv"):
            if int(left.name.partition("-")[0]) < before_epoch:
                right.check()
                left.unlink(missing_ok=True)


def csv(path: Path) -> CsvSink:
    """Write rows as CSV files: a directory per publication, each once."""
    return CsvSink(path)
