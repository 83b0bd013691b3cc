"""What chaos sees of hosts in their meta store: which epochs are committed, who has the seats, who is ready."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from holdfast.errors import HoldfastError
from holdfast.meta import MetaStore
from holdfast.meta.lease_holder import this_process
from holdfast.replica.scheme_change import turn
from holdfast.replica.schemes import Scheme
from holdfast.replica.seat_store import Agreed, Agreement

__all__ = ["HostView"]


class HostView:
    """`fragment` is the one whose commits a person waits for. What cannot be seen now is as it was last."""

    def __init__(self, where: Path | str, fragment: str) -> None:
        self.meta = MetaStore(where)
        self.fragment = fragment
        self._agreement = Agreement(self.meta, this_process(), time.time)
        self._committed = 0
        self._agreed: dict[str, Agreed] = {}

    def committed(self) -> int:
        """The last epoch that is committed."""
        with contextlib.suppress(SQLAlchemyError, HoldfastError):
            self._committed = self.meta.last_epoch(self.fragment)
        return self._committed

    def furthest(self) -> int:
        """The last committed epoch of any fragment."""
        return max(self.meta.last_epoch(name) for name in self.meta.pipelines())

    def agreed(self) -> Mapping[str, Agreed]:
        """The seats of all fragments."""
        with contextlib.suppress(SQLAlchemyError, HoldfastError):
            self._agreed = self._agreement.look(self.meta.pipelines())
        return self._agreed

    @property
    def scheme(self) -> Scheme:
        return self._agreed[self.fragment].seats.scheme

    def primary(self) -> str | None:
        agreed = self.agreed().get(self.fragment)
        return None if agreed is None or agreed.seats.primary is None else agreed.seats.primary.host

    def token(self) -> int:
        """Greater with every seat that is taken."""
        agreed = self.agreed().get(self.fragment)
        return 0 if agreed is None or agreed.seats.primary is None else agreed.seats.primary.token

    def incarnations(self) -> dict[str, int]:
        """The newest process of each host."""
        found: dict[str, int] = {}
        for fragment in self.agreed().values():
            for host, member in fragment.seats.members.items():
                found[host] = max(found.get(host, 0), member.incarnation)
        return found

    def whole(self, dead: Mapping[str, int]) -> bool:
        """Whether every fragment has the primary and the secondary that its scheme asks for; `dead` are processes that
        do not count, though nobody may have noticed yet."""
        agreed = self.agreed()
        return bool(agreed) and all(_is_whole(fragment, dead) for fragment in agreed.values())

    def turn(self, steps: list[Scheme]) -> None:
        for fragment in self.agreed():
            for step in steps:
                turn(self._agreement, fragment, step)

    def close(self) -> None:
        self.meta.close()


def _is_whole(agreed: Agreed, dead: Mapping[str, int]) -> bool:
    seats = agreed.seats
    if agreed.ended:
        return True
    passive = not seats.scheme.needs_secondary
    for seat in (seats.primary,) if passive else (seats.primary, seats.secondary):
        if seat is None or seat.incarnation <= dead.get(seat.host, 0):
            return False
    return passive or seats.secondary_ready
