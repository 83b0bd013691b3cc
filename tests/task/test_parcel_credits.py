"""Credits of the exchange: a fellow that holds too much stops reading ahead, and every byte is accounted for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.task import parcel_credits
from holdfast.task.parcel_credits import ParcelCredits


@pytest.fixture(autouse=True)
def bound() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parcel_credits, "MOST_BYTES", 1_000)
        yield


def test_whoever_holds_too_much_of_what_it_was_sent_stops_reading_ahead() -> None:
    credits = ParcelCredits()
    credits.sent(0, 999)
    credits.sent(1, 999)
    assert credits.left
    credits.sent(1, 5_000)
    assert not credits.left
    credits.returned(0, 999)
    assert not credits.left, "it is another one that is full"
    credits.returned(1, 5_000)
    assert credits.left


def test_a_new_generation_begins_with_nothing_on_its_way() -> None:
    credits = ParcelCredits()
    credits.sent(1, 5_000)
    credits.taken(1, 200)
    credits.clear()
    assert credits.left
    assert credits.taken(1, 249) == 0


@given(sizes=st.lists(st.integers(0, 600), max_size=60), bound=st.sampled_from([1, 7, 1_000]))
def test_a_sender_is_told_often_enough_to_go_on_and_never_more_than_was_taken(sizes: list[int], bound: int) -> None:
    """All that was sent is assembled in the end: then nobody waits, though small rests are never told."""
    parcel_credits.MOST_BYTES = bound
    sender, receiver, told = ParcelCredits(), ParcelCredits(), 0
    for size in sizes:
        sender.sent(1, size)
    for number, size in enumerate(sizes):
        back = receiver.taken(0, size)
        told += back
        sender.returned(1, back)
        assert told <= sum(sizes[: number + 1])
        assert sum(sizes[: number + 1]) - told < max(1, bound / 4)
    assert sender.left
