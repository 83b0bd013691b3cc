"""What a run may do by the seat of its host, while that changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.errors import LeaseLostError
from holdfast.meta import Lease
from holdfast.replica.replica import SeatAuthority


def authority(token: int, *, primary: bool) -> SeatAuthority:
    keeper = SimpleNamespace(seat=SimpleNamespace(token=token), is_primary=primary)
    agreement = SimpleNamespace(lease=lambda fragment, token, shared: Lease(fragment, "host", token, shared))
    return SeatAuthority(
        SimpleNamespace(agreement=agreement),  # type: ignore[arg-type]
        SimpleNamespace(keeper=keeper, stopped=None),  # type: ignore[arg-type]
        "a",
        precise=True,
    )


def test_a_primary_has_the_lease_and_a_secondary_shares_it() -> None:
    first, second = authority(3, primary=True), authority(4, primary=False)
    for found in (first, second):
        found.renew()
    assert (first.lease.token, first.lease.shared) == (3, False)
    assert (second.lease.token, second.lease.shared) == (4, True)


def test_who_was_the_primary_has_no_right_as_the_secondary() -> None:
    """Its background threads still write and remove as the primary that they began under."""
    found = authority(3, primary=True)
    found.renew()
    found.place.keeper.seat, found.place.keeper.is_primary = SimpleNamespace(token=5), False  # type: ignore[misc]
    with pytest.raises(LeaseLostError):
        _ = found.lease


def test_a_new_seat_is_for_a_new_run() -> None:
    found = authority(3, primary=True)
    found.renew()
    found.place.keeper.seat = SimpleNamespace(token=7)  # type: ignore[assignment]
    with pytest.raises(LeaseLostError):
        _ = found.lease
