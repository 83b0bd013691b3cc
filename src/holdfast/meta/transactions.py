"""The database of a meta store, opened: transactions that wait for it as long as that makes sense, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from holdfast.database_url import shown_url
from holdfast.errors import OldStoreError, StoreBusyError, StoreFullError, StoreUnreachableError
from holdfast.meta.engine import BUSY_SECONDS, OpenedDatabase, open_engine
from holdfast.meta.versions import lacking, readable_version, writable_version
from holdfast.threads import SYSTEM, Clock

__all__ = ["Database"]

_AGAIN_SECONDS = 0.1


class Database:
    """Opened to write, it has today's version. Opened only to read, it may have an older one, and stays as it is."""

    def __init__(
        self, where: Path | str | OpenedDatabase, *, sync: bool = True, reads_only: bool = False, clock: Clock = SYSTEM
    ) -> None:
        opened = where if isinstance(where, OpenedDatabase) else open_engine(where, sync, reads_only=reads_only)
        self.engine, self._patience, self._turns = opened.engine, opened.patience, opened.turns
        self._clock = clock
        self._reads_only = reads_only
        self._writers = {
            synced: self.engine.execution_options(holdfast_writes=True, holdfast_syncs=synced)
            for synced in (True, False)
        }
        try:
            self.version = readable_version(self.engine) if reads_only else writable_version(self.engine)
            self._lacking = self._missing() if reads_only else frozenset()
        except BaseException:
            self.close()
            raise

    def _missing(self) -> frozenset[str]:
        with self.engine.connect() as connection:
            return lacking(connection)

    def has(self, table: sa.Table) -> bool:
        """Whether the store has a table: an older one may not, and then there is nothing to be read in it."""
        return table.name not in self._lacking

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._connect(self.engine) as connection:
            yield connection

    @contextmanager
    def writing(
        self, epoch: int | None = None, until: float | None = None, *, synced: bool = True
    ) -> Iterator[sa.Connection]:
        """A transaction that writes. One that others lock out has not begun: it is tried again `until` this time of the
        monotonic clock, by default for a while. One that is not `synced` is for what may be lost with the power of the
        machine, if nothing after it is left: in SQLite it becomes durable with the next one that is.

        If it fails with `StoreUnreachableError`, it may have been committed all the same: the answer was lost, and only
        the store can tell.
        """
        if self._reads_only:
            raise OldStoreError(
                f"the store {shown_url(self.engine.url)} was opened for reading only",
                cure="this is a bug in Holdfast; please report it",
            )
        try:
            until = self._clock.monotonic() + BUSY_SECONDS if until is None else until
            with self._begun(until, synced=synced) as connection:
                yield connection
        except (StoreFullError, StoreUnreachableError) as error:
            raise error.at(epoch=epoch) from error.__cause__

    @contextmanager
    def _turn(self, until: float) -> Iterator[None]:
        """While others in this process do not write. If the wait was in vain, the database says so."""
        taken = self._turns is not None and self._turns.take(until - self._clock.monotonic())
        try:
            yield
        finally:
            if taken and self._turns is not None:
                self._turns.end()

    @contextmanager
    def _begun(self, until: float, *, synced: bool) -> Iterator[sa.Connection]:
        with self._turn(until), self._connect(self._writers[synced]) as connection:
            while True:
                try:
                    transaction = connection.begin()
                    break
                except StoreBusyError:
                    if self._clock.monotonic() >= until:
                        raise
            with transaction:
                yield connection

    def _connect(self, engine: sa.Engine) -> sa.Connection:
        """A connection. A database that is away is waited for a while: nothing was asked of it yet."""
        deadline = self._clock.monotonic() + self._patience
        while True:
            try:
                return engine.connect()
            except StoreUnreachableError:
                if self._clock.monotonic() >= deadline:
                    raise
                self._clock.sleep(_AGAIN_SECONDS)

    def close(self) -> None:
        self.engine.dispose()
