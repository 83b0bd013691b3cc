"""By what right a run plans and commits: a lease that it holds alone, or a seat beside another host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Protocol, Self

import sqlalchemy as sa

from holdfast.meta import Lease, MetaStore

__all__ = ["Authority", "HeldAuthority", "ReplicaAuthority", "Role"]


class Authority(Protocol):
    """Who holds the lease while a run lasts."""

    @property
    def lease(self) -> Lease: ...

    def renew(self) -> None:
        """Called often; raises what keeps the run from going on."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class HeldAuthority:
    """The right of a run to write and to remove what belongs to its fragment, by the lease it holds at the moment."""

    meta: MetaStore
    authority: Authority

    def check(self) -> None:
        self.meta.confirm(self.authority.lease)

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that fails if another run has the lease by now."""
        with self.meta.fenced(self.authority.lease) as connection:
            yield connection


class Role(Enum):
    """What a replica of a fragment does."""

    NONE = "nothing"
    COLD = "keeps the state"
    HOT = "keeps the state and the input"
    FOLLOW = "processes"
    SHARE = "processes and publishes beside the primary"
    LEAD = "is the primary"

    @property
    def stands_by(self) -> bool:
        return self in (Role.COLD, Role.HOT)


class ReplicaAuthority(Authority, Protocol):
    """The seat of a replica. What it is for may change at any time."""

    @property
    def role(self) -> Role: ...

    @property
    def shared(self) -> bool:
        """Whether primary and secondary both commit: who is first wins."""
        ...

    @property
    def precise(self) -> bool:
        """Whether a recovery replays what was not processed, or leaves it out."""
        ...

    def ready(self, role: Role | None) -> None:
        """The replica has all that a role needs; None: not yet."""

    def differs(self, epoch: int, what: str) -> None:
        """The output of this epoch is not what the other replica has committed: the secondary is to be stopped."""
