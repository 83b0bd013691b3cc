"""What runs do differently in commits, by their roles: all of it in one table."""

from __future__ import annotations

import pytest

from holdfast.engine.commit_part import CommitPart, part_of
from holdfast.engine.roles import Role, Seat
from holdfast.store import Tier

ALONE, PRIMARY = Seat(Role.LEAD), Seat(Role.LEAD, replica=True)
FIRST_OF_TWO, SECOND_OF_TWO = Seat(Role.LEAD, shared=True, replica=True), Seat(Role.SHARE, shared=True, replica=True)
FOLLOWER = Seat(Role.FOLLOW, replica=True)


@pytest.mark.parametrize(
    ("seat", "leading", "expected"),
    [
        (ALONE, True, CommitPart(alone=True, leads=True, commits=True, publishes_adopted=False)),
        (PRIMARY, True, CommitPart(alone=False, leads=True, commits=True, publishes_adopted=False)),
        (FIRST_OF_TWO, True, CommitPart(alone=False, leads=True, commits=True, publishes_adopted=True)),
        (SECOND_OF_TWO, False, CommitPart(alone=False, leads=False, commits=True, publishes_adopted=True)),
        (FOLLOWER, False, CommitPart(alone=False, leads=False, commits=False, publishes_adopted=False)),
        # It has got the first seat, and has not adopted yet what was committed before.
        (PRIMARY, False, CommitPart(alone=False, leads=False, commits=False, publishes_adopted=False)),
    ],
)
def test_the_part_follows_from_the_seat_and_from_whether_the_run_leads(
    seat: Seat, leading: bool, expected: CommitPart
) -> None:
    assert part_of(seat, leading=leading) == expected


@pytest.mark.parametrize(
    ("seat", "leading", "tiers"),
    [
        (PRIMARY, True, ("stable", "volatile")),
        (SECOND_OF_TWO, False, ("volatile", "stable")),
        (FOLLOWER, False, ("volatile", "volatile")),
    ],
)
def test_state_is_written_where_the_part_says(seat: Seat, leading: bool, tiers: tuple[Tier, Tier]) -> None:
    """The checkpoints of the leader decide, the policy of the last record, or neither."""
    part = part_of(seat, leading=leading)
    assert (part.tier("stable", "none"), part.tier("volatile", "delta")) == tiers
