"""Something done before every commit of a fragment, or after it: for tests that kill or delay a run there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.engine import committer
from holdfast.epoch.transaction import Transaction
from holdfast.meta import Lease, MetaStore


def _nothing(meta: MetaStore, lease: Lease, epoch: int) -> None:
    pass


def around_commits(
    before: Callable[[MetaStore, Lease, int], None] = _nothing,
    after: Callable[[MetaStore, Lease, int], None] = _nothing,
    patch: Callable[[object, str, object], None] = setattr,
) -> None:
    """`before` is called when no transaction is open, `after` once it is committed."""
    real = committer.committing

    @contextmanager
    def watched(meta: MetaStore, lease: Lease, epoch: int | None = None) -> Iterator[Transaction]:
        before(meta, lease, epoch or 0)
        with real(meta, lease, epoch) as transaction:
            yield transaction
        after(meta, lease, epoch or 0)

    patch(committer, "committing", watched)
