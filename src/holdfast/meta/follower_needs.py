"""Which epochs somebody without a seat follows, and has yet to run: the leader has the store know them until then.

Epochs may take milliseconds, and the store forgets them soon. Who follows says again and again how far it has come; who
has not said it for a while is gone.
"""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.meta.sql_tables import info
from holdfast.meta.store import MetaStore
from holdfast.threads import SYSTEM, Clock

__all__ = ["FollowerNeeds"]

_KEY = "follows "
_SAID_SECONDS = 1.0
_GONE_SECONDS = 60.0
_LOOK_SECONDS = 0.25


class FollowerNeeds:
    """Of the fragments of one store, for who follows and for who leads. Used by one thread per fragment."""

    def __init__(self, meta: MetaStore, clock: Clock = SYSTEM) -> None:
        self._meta = meta
        self._clock = clock
        self._said: dict[str, float] = {}
        self._looked: dict[str, tuple[float, int | None]] = {}

    def begin(self, fragment: str) -> None:
        """Follow from the last commit on."""
        self._said.pop(fragment, None)
        self.follows(fragment, self._meta.last_epoch(fragment))

    def follows(self, fragment: str, epoch: int) -> None:
        """This epoch was run; those behind it are needed."""
        now = self._clock.monotonic()
        if now - self._said.get(fragment, -_SAID_SECONDS) < _SAID_SECONDS:
            return
        self._said[fragment] = now
        key, text = _KEY + fragment, f"{epoch} {self._clock.now() + _GONE_SECONDS}"
        with self._meta.writing() as connection:
            if not connection.execute(info.update().where(info.c.key == key).values(value=text)).rowcount:
                connection.execute(info.insert().values(key=key, value=text))

    def end(self, fragment: str) -> None:
        """Nobody follows any more."""
        with self._meta.writing() as connection:
            connection.execute(info.delete().where(info.c.key == _KEY + fragment))

    def after(self, fragment: str) -> int | None:
        """The epoch behind which all are needed; None if nobody follows. Looked up a few times a second."""
        now = self._clock.monotonic()
        looked, found = self._looked.get(fragment, (now - _LOOK_SECONDS, None))
        if now - looked >= _LOOK_SECONDS:
            found = self._look(fragment)
            self._looked[fragment] = now, found
        return found

    def _look(self, fragment: str) -> int | None:
        with self._meta.reading() as connection:
            text = connection.scalar(sa.select(info.c.value).where(info.c.key == _KEY + fragment))
        if text is None:
            return None
        epoch, until = text.split()
        return int(epoch) if self._clock.now() <= float(until) else None
