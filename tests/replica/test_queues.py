"""Duplicates and order: the incoming queue, the merge, and the reader of the output."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from holdfast.replica.queues import Inbox, Receiver
from strategies import examples


@examples(100)
@given(st.integers(1, 60), st.integers(0, 10**6))
def test_the_queue_has_everything_once_however_it_is_sent(length: int, seed: int) -> None:
    draw = random.Random(seed)
    inbox = Inbox.at((0, 0))
    while min(inbox.seen) < length:
        upstream, first = draw.randrange(2), draw.randrange(length)
        inbox.accept(upstream, first, min(length, first + draw.randint(1, 9)))
    for upstream in range(2):
        got = [n for number, a, b in inbox.take(((0, length), (0, length))) if number == upstream for n in range(a, b)]
        assert got == list(range(length))


def test_a_slice_is_taken_from_the_pieces_that_came() -> None:
    inbox = Inbox.at((0,))
    for first, end in [(0, 3), (2, 5), (5, 9)]:
        inbox.accept(0, first, end)
    assert inbox.take(((2, 6),)) == ((0, 2, 3), (0, 3, 5), (0, 5, 6))
    inbox.prune((4,))
    assert inbox.first == [3]
    assert inbox.covers(((3, 9),))
    assert not inbox.covers(((2, 9),))
    assert not inbox.covers(((3, 10),))


def test_what_comes_too_early_is_noted_as_a_gap() -> None:
    inbox = Inbox.at((0,))
    assert not inbox.accept(0, 4, 6)
    assert inbox.gap
    assert inbox.seen == [0]


@examples(100)
@given(st.lists(st.integers(1, 12), max_size=60))
def test_the_reader_takes_each_epoch_once_and_in_order(sent: list[int]) -> None:
    reader = Receiver()
    taken = [epoch for each in sent for epoch, _ in reader.take(each, each)]
    assert taken == list(range(1, reader.seen + 1))
    assert reader.seen == next(n for n in range(13) if n + 1 not in sent)
