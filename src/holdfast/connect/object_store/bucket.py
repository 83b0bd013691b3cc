"""A bucket of an object store: objects are listed, read by ranges, put whole, copied within the bucket and deleted.

An object appears whole, and is seen by everybody at once. `put_new` puts an object only if there is none of its name:
of several who try, one succeeds. The library tries again what a server refuses for the moment (503) or does not answer.
So one `put_new` may have been carried out and still be told that the object is there: who puts looks at what is there.

Not promised: that an object which is deleted or put again while it is read is noticed, unless its tag is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.connect.extra_library import require_library
from holdfast.connect.object_store.bucket_address import BucketAddress, Scheme, bucket_address
from holdfast.connect.object_store.storage_options import (
    AnyOptions,
    StorageOptions,
    StoreSettings,
    storage_options,
)
from holdfast.connect.object_store.store_refusals import Refusals
from holdfast.errors import DeclarationError
from holdfast.store import Right

if TYPE_CHECKING:
    import os

    from obstore import ObjectMeta
    from obstore.store import ObjectStore

__all__ = ["Bucket", "StoredObject", "bucket_at"]

_AT_ONCE = 100
"""The right to delete is checked again after so many objects: meanwhile it may have gone."""
_PIECE = 8 << 20
_IN_PARALLEL = 8
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as the store tells of it. `tag` is another one for every other content."""

    key: str
    size: int
    modified: datetime
    tag: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """Settings only; a process makes its client when it needs one."""

    scheme: Scheme
    name: str
    options: StorageOptions

    def address(self, key: str) -> str:
        return str(BucketAddress(self.scheme, self.name, key))

    def list(self, prefix: str, *, deep: bool, after: str | None = None) -> Sequence[StoredObject]:
        """The objects in a directory, in the order of their keys; with `deep`, also those below it. Those up to the key
        `after` are left out where the store can do that, and may be given all the same."""
        import obstore  # noqa: PLC0415 - an extra

        where = f"{prefix}/" if prefix else None

        def found(client: ObjectStore) -> Sequence[ObjectMeta]:
            if not deep:
                return obstore.list_with_delimiter(client, where)["objects"]
            return [meta for some in obstore.list(client, where, offset=after) for meta in some]

        return sorted(map(_stored, self._ask(f"list {self.address(prefix)}", found)), key=lambda stored: stored.key)

    def head(self, key: str) -> StoredObject | None:
        """The object as it is now; None if there is none."""
        import obstore  # noqa: PLC0415 - an extra

        with suppress(FileNotFoundError):
            return _stored(self._ask(f"look at {self.address(key)}", lambda client: obstore.head(client, key)))
        return None

    def read(self, key: str, start: int, stop: int, tag: str) -> bytes | None:
        """Bytes of an object, as far as it has them; None if it no longer has this tag. Raises FileNotFoundError."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import PreconditionError  # noqa: PLC0415 - an extra

        def found(client: ObjectStore) -> bytes | None:
            try:
                return bytes(obstore.get(client, key, options={"range": (start, stop), "if_match": tag}).bytes())
            except PreconditionError:
                return None

        return self._ask(f"read {self.address(key)}", found)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, memoryview]]:
        """Buffers with the bytes of ranges, each with where it begins; long ranges come in pieces. They are read in
        parallel. Raises FileNotFoundError."""
        import obstore  # noqa: PLC0415 - an extra

        pieces = [(at, min(at + _PIECE, stop)) for start, stop in ranges for at in range(start, stop, _PIECE)]
        for first in range(0, len(pieces), _IN_PARALLEL):
            starts, ends = zip(*pieces[first : first + _IN_PARALLEL], strict=True)
            call = partial(obstore.get_ranges, path=key, starts=starts, ends=ends, coalesce=0)
            found = self._ask(f"read {self.address(key)}", call)
            yield from ((start, memoryview(content)) for start, content in zip(starts, found, strict=True))

    def get(self, key: str) -> bytes | None:
        """All of an object; None if there is none."""
        import obstore  # noqa: PLC0415 - an extra

        with suppress(FileNotFoundError):
            return self._ask(f"read {self.address(key)}", lambda client: bytes(obstore.get(client, key).bytes()))
        return None

    def put(self, key: str, content: bytes | memoryview) -> None:
        """Put an object, over one that is there."""
        import obstore  # noqa: PLC0415 - an extra

        self._ask(f"write {self.address(key)}", lambda client: obstore.put(client, key, content))

    def put_new(self, key: str, content: bytes) -> bool:
        """Put an object if there is none of its name; False if there is one, which may be this one."""
        import obstore  # noqa: PLC0415 - an extra
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - an extra

        def is_put(client: ObjectStore) -> bool:
            try:
                obstore.put(client, key, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        return self._ask(f"write {self.address(key)}", is_put)

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the store, over one that is there. Raises FileNotFoundError."""
        import obstore  # noqa: PLC0415 - an extra

        self._ask(f"copy {self.address(key)} to {to}", lambda client: obstore.copy(client, key, to))

    def delete(self, keys: Collection[str], right: Right) -> None:
        """Delete objects. One that is not there is no error: deleting may have been interrupted before."""
        decided = sorted(keys)
        for start in range(0, len(decided), _AT_ONCE):
            right.check()
            some = decided[start : start + _AT_ONCE]
            self._ask(f"delete in {self.address('')}", partial(_delete, keys=some))

    def _ask(self, doing: str, call: Callable[[ObjectStore], T]) -> T:
        """Ask the store. The library asks again where a server says to come back later, and not always where a
        connection breaks. Everything that is asked for here may be asked for twice."""
        from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

        place = self.options.get("endpoint", "endpoint_url", "base_url")
        refusals = Refusals(self.scheme, self.name, place)
        until = time.monotonic() + self.options.retry_seconds
        tried, pause = 0, _FIRST_PAUSE
        while True:
            try:
                return call(self._client())
            except BaseError as error:
                tried += 1
                if tried > self.options.retries or time.monotonic() > until or not refusals.is_broken(error):
                    # Not as its cause: the library's text is long, and has what the server said of the request.
                    raise refusals.error(doing, error) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _client(self) -> ObjectStore:
        # With what references lead to now: who exchanges a credential need not start again.
        return _made(self.scheme, self.name, self.options.looked_up(f"{self.scheme}://{self.name}"))


def bucket_at(value: str | os.PathLike[str], options: AnyOptions | None, what: str) -> tuple[Bucket, str] | None:
    """The bucket of an address, and the key in it; None for a path. `what` is who was given it, e.g. "files()"."""
    address = bucket_address(value, what)
    if address is None:
        if options is not None:
            raise DeclarationError(
                f"{what}: storage_options are for object stores, but this is a path", cure="leave them out"
            )
        return None
    require_library("obstore", "objectstore", what)
    bucket = Bucket(address.scheme, address.bucket, storage_options(what, options))
    _try(bucket, what)
    return bucket, address.key


def _try(bucket: Bucket, what: str) -> None:
    """Whether the library takes the settings: it says what it does not know when a client is made."""
    from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

    try:
        bucket._client()
    except (BaseError, ValueError, TypeError) as error:
        text = str(error).strip().partition("\n")[0]
        for _, value in bucket.options.looked_up(what).config:
            text = text.replace(value, "…") if len(value) > 3 else text
        raise DeclarationError(
            f"{what}: storage_options are refused: {text}",
            cure="correct them: the names are those of obstore's S3Config, GCSConfig and AzureConfig, e.g. 'region',"
            " 'endpoint', 'access_key_id'",
        ) from None


@lru_cache(maxsize=32)
def _made(scheme: Scheme, name: str, settings: StoreSettings) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415 - an extra

    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    client, retry = dict(settings.client) or None, settings.retry()
    made: ObjectStore = kinds[scheme](name, config=dict(settings.config), client_options=client, retry_config=retry)
    return made


def _delete(client: ObjectStore, keys: Sequence[str]) -> None:
    import obstore  # noqa: PLC0415 - an extra

    try:
        obstore.delete(client, keys)
    except FileNotFoundError:  # of a store that says so
        for key in keys:
            with suppress(FileNotFoundError):
                obstore.delete(client, key)


def _stored(meta: ObjectMeta) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"] or "")
