"""What a run says of itself for `status`: a line for each fragment and host. Nothing is decided by it."""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.meta.sql_tables import info
from holdfast.meta.store import MetaStore

__all__ = ["RunNotes"]

_KEY = "executor "
_CODE = "code "


class RunNotes:
    """What runs the epochs of fragments."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def executor(self, fragment: str, host: str | None, text: str) -> None:
        """What runs the epochs of a fragment from now on, on that host, where there are several."""
        self._note(f"{_KEY}{fragment}" if host is None else f"{_KEY}{fragment} on {host}", text)

    def ran(self, fragment: str, host: str, target: str) -> None:
        """Which code a host runs a fragment with from now on, as `FILE:NAME`."""
        self._note(f"{_CODE}{fragment} on {host}", target)

    def code(self, fragment: str, host: str) -> str | None:
        """Which code a host has last run a fragment with."""
        key = f"{_CODE}{fragment} on {host}"
        with self._meta.reading() as connection:
            found: str | None = connection.scalar(sa.select(info.c.value).where(info.c.key == key))
        return found

    def _note(self, key: str, text: str) -> None:
        with self._meta.writing() as connection:
            if not connection.execute(info.update().where(info.c.key == key).values(value=text)).rowcount:
                connection.execute(info.insert().values(key=key, value=text))

    def executors(self, fragment: str) -> dict[str, str]:
        """By host; without a name where there are none."""
        own = f"{_KEY}{fragment}"
        with self._meta.reading() as connection:
            found = {row.key: row.value for row in connection.execute(sa.select(info))}
        return {
            key.removeprefix(own).removeprefix(" on "): text
            for key, text in sorted(found.items())
            if key == own or key.startswith(f"{own} on ")
        }
