"""Buckets of an S3 server of the tests, with what is in them."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.connect.object_store.bucket import Bucket, bucket_at
from holdfast_lab.chaos.s3_server import S3Server, make_bucket

_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class TestBucket:
    """A bucket of its own."""

    __test__ = False
    server: S3Server
    name: str
    bucket: Bucket

    @property
    def options(self) -> dict[str, str | int | float | bool]:
        return self.server.options()

    def url(self, key: str) -> str:
        return f"s3://{self.name}/{key}"

    def put(self, key: str, content: bytes) -> None:
        self.bucket.put(key, content)

    def put_parquet(self, key: str, rows: pl.DataFrame, row_group: int | None = None) -> None:
        made = io.BytesIO()
        rows.write_parquet(made, row_group_size=row_group)
        self.put(key, made.getvalue())

    def keys(self, prefix: str) -> list[str]:
        return [stored.key for stored in self.bucket.list(prefix, deep=True)]

    def asked(self, *methods: str) -> Sequence[tuple[str, str]]:
        """The requests that came for it."""
        return [
            (method, path)
            for method, path in self.server.requests
            if method in methods and path.startswith(f"/{self.name}")
        ]


def new_bucket(server: S3Server) -> TestBucket:
    name = f"bucket-{next(_NUMBERS)}"
    found = bucket_at(make_bucket(server, name), server.options(), "a test")
    assert found is not None
    return TestBucket(server, name, found[0])
