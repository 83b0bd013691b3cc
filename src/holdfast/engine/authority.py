"""What allows a run to plan and commit: a lease that it holds alone, or a seat that others share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import sqlalchemy as sa

from holdfast.engine.roles import Role, Seat
from holdfast.meta import Lease, MetaStore

__all__ = ["Authority", "HeldAuthority"]


class Authority(Protocol):
    """What a run is asked for, and the lease that it plans and commits with."""

    @property
    def seat(self) -> Seat:
        """What is asked of the run now. It may change at any time."""
        ...

    @property
    def lease(self) -> Lease: ...

    def renew(self) -> None:
        """Called often; raises what keeps the run from going on."""

    def ready(self, role: Role | None) -> None:
        """The run has all that a role needs; None: not yet."""

    def differs(self, epoch: int, what: str) -> None:
        """The output of this epoch is not what another replica has committed: the secondary is to be stopped."""

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
