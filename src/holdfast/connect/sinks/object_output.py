"""The output of a file sink in an object store: plain files, and manifests that say which of them are complete.

    out/epoch=000000000012/part-00000.parquet       rows of committed epochs
    .out.holdfast/manifests/000000000012.json       the files of a publication, put once
    .out.holdfast/owner.json                        whose it is
    .out.holdfast/staged/<owner>/12/0-a1.parquet    what a task prepared for epoch 12, by part and attempt

What is not to be read is beside the output: readers take all that is below the address that they are given.

A publication has happened when its manifest is there. It is put if there is none, so there is one for a publication,
ever, whoever else tries. A reader without manifests sees rows of committed epochs only, each once, but may see some
files of a publication before the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import polars as pl

from holdfast.connect.base import Owner
from holdfast.connect.object_store.bucket import Bucket
from holdfast.connect.sinks.part_content import EPOCH_KEY, SinkFormat, rows_of_parts
from holdfast.errors import (
    CorruptFileError,
    InputError,
    OutputConflictError,
    OutputUnwritableError,
    UnknownVersionError,
)
from holdfast.formats import OUTPUT_VERSION, OWNER_VERSION

__all__ = ["ObjectOutput", "OutputFile", "OutputManifest"]

_MANIFEST = re.compile(r"\d{12,}\.json")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file of a publication; its name is relative to the output."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class OutputManifest:
    """What was published under the number of an epoch. `prepared` are the names of what tasks had prepared for it: they
    tell it from any other."""

    epoch: int
    owner: Owner
    prepared: tuple[str, ...]
    files: tuple[OutputFile, ...]

    def encode(self) -> bytes:
        rows = sum(file.rows for file in self.files)
        return json.dumps({"version": OUTPUT_VERSION, "rows": rows, **asdict(self)}, indent=1).encode()

    @staticmethod
    def decode(content: bytes, place: str) -> OutputManifest:
        try:
            said = json.loads(content)
            _check_version(said, OUTPUT_VERSION, place)
            files = tuple(OutputFile(file["name"], int(file["rows"])) for file in said["files"])
            return OutputManifest(int(said["epoch"]), Owner(**said["owner"]), tuple(said["prepared"]), files)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputConflictError(
                f"{place} is not a manifest of Holdfast: {error}", cure="remove it if you know where it comes from"
            ) from error

    def is_as(self, other: OutputManifest) -> bool:
        """Whether both are of one publication."""
        return (self.epoch, self.owner, self.prepared) == (other.epoch, other.owner, other.prepared)


@dataclass(frozen=True, slots=True)
class ObjectOutput:
    """The output at an address."""

    bucket: Bucket
    key: str

    def __str__(self) -> str:
        return self.bucket.address(self.key)

    @property
    def beside(self) -> str:
        """Where is what readers are not to see."""
        parent, _, name = self.key.rpartition("/")
        return f"{parent}/.{name}.holdfast" if parent else f".{name}.holdfast"

    def staged(self, owner: Owner) -> str:
        """In a directory of the owner's own: leftovers of another, with the same epochs, are no concern of its."""
        names = "\0".join((owner.store, owner.pipeline, owner.sink))
        return f"{self.beside}/staged/{hashlib.sha256(names.encode()).hexdigest()[:16]}"

    def target(self, epoch: int, number: int, format: SinkFormat) -> str:
        """The name of a file, relative to the output."""
        return f"{EPOCH_KEY}={epoch:012d}/part-{number:05d}.{format}"

    @property
    def _marker(self) -> str:
        return f"{self.beside}/owner.json"

    def owner(self) -> Owner | None:
        """Whose it is, if anybody has said so."""
        content, place = self.bucket.get(self._marker), self.bucket.address(self._marker)
        if content is None:
            return None
        try:
            said = json.loads(content)
            _check_version(said, OWNER_VERSION, place)
            del said["version"]
            return Owner(**said)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputConflictError(
                f"{place}, which names the owner of {self}, cannot be read: {error}",
                cure=f"write elsewhere, or remove {place} if nothing else writes to {self}",
            ) from error

    def claim(self, owner: Owner) -> None:
        """Make it this owner's, or raise if it is another's, or if the store cannot put an object just once."""
        content = json.dumps({"version": OWNER_VERSION, **asdict(owner)}).encode()
        if self.owner() is None:
            if self.bucket.list(self.key, deep=True):
                raise OutputConflictError(
                    f"{self} has objects, but no owner file",
                    cure="write elsewhere, or remove what is there",
                )
            self.bucket.put_new(self._marker, content)
        self.confirm(owner)
        if self.bucket.put_new(self._marker, content):
            raise OutputUnwritableError(
                f"the store of {self} overwrites an existing object, although it was asked not to"
                " (If-None-Match): a publication could happen twice",
                cure="use a store or a version of it with conditional writes, as S3, Google Cloud Storage and Azure"
                " have them",
            )

    def confirm(self, owner: Owner) -> None:
        """Raise unless it is this owner's."""
        found = self.owner()
        if found is None:
            raise OutputConflictError(
                f"{self.bucket.address(self._marker)}, which names the owner of {self}, is missing",
                cure="start the pipeline again: it checks whether the output there is its own",
            )
        if found != owner:
            raise OutputConflictError(
                f"{self} is the output of {found}; this is {owner}",
                cure=f"write elsewhere; or, if that pipeline is no longer needed, remove {self} and"
                f" {self.bucket.address(self.beside)}",
            )

    def manifest(self, epoch: int) -> OutputManifest | None:
        """The manifest of a publication, if it has happened."""
        content = self.bucket.get(self._manifest(epoch))
        return None if content is None else OutputManifest.decode(content, self.bucket.address(self._manifest(epoch)))

    def publish(self, manifest: OutputManifest) -> None:
        """Put the manifest, unless it is there."""
        if not self.bucket.put_new(self._manifest(manifest.epoch), manifest.encode()):
            self.is_published(manifest)

    def is_published(self, manifest: OutputManifest) -> bool:
        """Whether this publication has happened; raises if another one has in its place."""
        found = self.manifest(manifest.epoch)
        if found is not None and not found.is_as(manifest):
            raise OutputConflictError(
                f"{self.bucket.address(self._manifest(manifest.epoch))} belongs to another history: it was written by"
                f" {found.owner}, from other attempts at the same epochs",
                cure="move it and its files elsewhere and start again: the epoch is committed and will then be"
                " published",
            )
        return found is not None

    def epochs(self) -> list[int]:
        """The numbers of all publications, in order."""
        if self.owner() is None:
            raise InputError(
                f"{self} is not the output of a file sink",
                cure="give the address of the sink; no run has written there yet, or it ran elsewhere",
            )
        names = [stored.key.rpartition("/")[2] for stored in self.bucket.list(self._manifests, deep=False)]
        return sorted(int(name.removesuffix(".json")) for name in names if _MANIFEST.fullmatch(name))

    def parts(self, epoch: int) -> list[tuple[str, Callable[[], bytes]]]:
        """The files of a publication, by name, and what reads them; none if it was removed meanwhile."""
        manifest = self.manifest(epoch)
        return [] if manifest is None else [(file.name, partial(self._content, file)) for file in manifest.files]

    def read(self, format: SinkFormat | None, schema: pl.Schema | None) -> pl.DataFrame:
        """All rows that were published."""
        return rows_of_parts((part for epoch in self.epochs() for part in self.parts(epoch)), format, schema)

    def _content(self, file: OutputFile) -> bytes:
        key = f"{self.key}/{file.name}"
        content = self.bucket.get(key)
        if content is None:
            raise CorruptFileError(
                f"{self.bucket.address(key)} is gone, but its manifest is still there",
                cure="when you remove output, remove its manifests as well, and first",
            )
        return content

    def _manifest(self, epoch: int) -> str:
        return f"{self._manifests}/{epoch:012d}.json"

    @property
    def _manifests(self) -> str:
        return f"{self.beside}/manifests"


def _check_version(said: Any, known: int, place: str) -> None:
    if said["version"] != known:
        raise UnknownVersionError(
            f"{place} has version {said['version']}; this program knows version {known}",
            cure="run the version of Holdfast that wrote it, or write elsewhere",
        )
