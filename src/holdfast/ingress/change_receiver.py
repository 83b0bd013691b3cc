"""Change data of PostgreSQL: reads a replication slot into the source's p-stream, and confirms what is durable.

When the database is gone it is tried again, for as long as it takes. What a person must see to ends the receiver.
"""

from __future__ import annotations

import logging
import threading
import time

import psycopg

from holdfast.connect.sources.postgres_changes import ChangesSource
from holdfast.connect.sources.push import Address
from holdfast.errors import HoldfastError, InputError, ListenError
from holdfast.ingress.change_progress import AGAIN_SECONDS, MOST_AGAIN_SECONDS, TakenChanges
from holdfast.ingress.change_setup import connected, find_slot, find_table, publish
from holdfast.ingress.change_snapshot import ChangeBeginning
from holdfast.ingress.change_stream import ChangeStream
from holdfast.ingress.replication_connection import ReplicationConnection, lsn_of, lsn_text
from holdfast.ingress.target import StreamTarget

__all__ = ["ChangeReceiver"]

_log = logging.getLogger(__name__)


class ChangeReceiver:
    """The reader of one source's slot. `check` raises what has ended it, if anything."""

    def __init__(self, target: StreamTarget, source: ChangesSource, grace: float) -> None:
        self.address: Address = source.server
        self._target = target
        self._source = source
        self._grace = grace
        self._stopping = threading.Event()
        self._failure: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run, name="postgres-changes", daemon=True)

    def start(self) -> None:
        """Returns when the database has answered; the snapshot is read later."""
        try:
            with connected(self._source) as connection:
                publish(connection, self._source, find_table(connection, self._source))
        except psycopg.Error as error:
            raise ListenError(
                f"postgres_changes(): the database at {self.address}: {_said(error)}",
                cure="check that the URL is right, the server runs, and this user may connect",
                operator=self._target.name,
            ) from None
        except InputError as error:
            raise error.at(operator=self._target.name) from None
        self._thread.start()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Make durable and confirm what was read."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(self._grace)

    def _run(self) -> None:
        pause = AGAIN_SECONDS
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    self._read()
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    if self._stopping.is_set():
                        return
                    pause = AGAIN_SECONDS if time.monotonic() - began > MOST_AGAIN_SECONDS else pause
                    _log.warning("source '%s': PostgreSQL at %s: %s; trying again", self._target.name, self.address,
                                 _said(error))  # fmt: skip
                self._stopping.wait(pause)
                pause = min(2 * pause, MOST_AGAIN_SECONDS)
        except HoldfastError as error:
            self._failure = error.at(operator=self._target.name)
        except psycopg.Error as error:
            self._failure = InputError(
                f"the changes of table '{self._source.table}' cannot be read: {_said(error)}",
                cure="see what the database says; everything read so far is durable",
                operator=self._target.name,
            )
        except Exception as error:  # noqa: BLE001 - the thread has no caller
            _log.exception("the reader of changes of source '%s' failed", self._target.name)
            self._failure = HoldfastError(
                f"the reader of changes failed: {type(error).__name__}: {error}",
                cure="this is a bug in Holdfast; please report it",
                operator=self._target.name,
            )

    def _read(self) -> None:
        """One connection, from the beginning to its end."""
        log = ReplicationConnection(self._source.url, self._source.answer_seconds)
        try:
            taken = TakenChanges(self._target, self._source, self._stopping, log)
            with connected(self._source) as connection:
                table = find_table(connection, self._source)
                publish(connection, self._source, table)
                if not taken.at:
                    ChangeBeginning(taken, connection, log, table).run()
                if self._stopping.is_set():
                    return
                self._check_slot(connection, log, taken)
            ChangeStream(taken, log, table).run()
        finally:
            log.close()

    def _check_slot(self, connection: psycopg.Connection, log: ReplicationConnection, taken: TakenChanges) -> None:
        found = find_slot(connection, self._source.slot)
        again = "give the pipeline another name and the source another slot, to begin with a snapshot"
        if found is None or found.lost:
            raise InputError(
                f"the replication slot '{self._source.slot}' is gone, and with it the changes after"
                f" {lsn_text(taken.at)}",
                cure=f"{again}; max_slot_wal_keep_size decides how much log the server keeps",
            )
        [system] = log.execute("IDENTIFY_SYSTEM")
        end = lsn_of(str(system["xlogpos"]))
        if end < taken.at:
            raise InputError(
                f"the log of the database ends at {lsn_text(end)}, but was read up to {lsn_text(taken.at)}: the"
                " database was restored from a backup, or is another one",
                cure=again,
            )


def _said(error: Exception) -> str:
    return " ".join(str(error).split())
