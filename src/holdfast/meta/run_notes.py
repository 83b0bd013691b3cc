"""What a run says of itself for `status`: a line for each fragment and host. Nothing is decided by it."""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.meta.sql_tables import info
from holdfast.meta.store import MetaStore

__all__ = ["RunNotes"]

_KEY = "executor "


class RunNotes:
    """What runs the epochs of fragments."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    def executor(self, fragment: str, host: str | None, text: str) -> None:
        """What runs the epochs of a fragment from now on, on that host, where there are several."""
        key = f"{_KEY}{fragment}" if host is None else f"{_KEY}{fragment} on {host}"
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
