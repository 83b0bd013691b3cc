"""Commands to pipelines: asked by anybody, seen in order, answered once, by the holder of the lease."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import LeaseLostError
from holdfast.meta import Command, Commands, MetaStore


@pytest.fixture
def meta(where: Path | str) -> Iterator[MetaStore]:
    opened = MetaStore(where, sync=False)
    yield opened
    opened.close()


def test_commands_wait_in_their_order_until_they_are_answered(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    first = commands.ask("p", {"do": "this"}, 1.0)
    second = commands.ask("p", {"do": "that"}, 2.0)
    commands.ask("q", {"do": "else"}, 2.0)
    assert commands.waiting("p") == [Command(first, {"do": "this"}), Command(second, {"do": "that"})]
    commands.answer(lease, first, {"done": True}, 3.0)
    commands.answer(lease, first, {"done": False}, 4.0)
    assert commands.answered(first) == {"done": True}, "the first answer stays"
    assert commands.answered(second) is None
    assert [command.number for command in commands.waiting("p")] == [second]


def test_who_lost_the_lease_cannot_answer(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    number = commands.ask("p", {}, 1.0)
    meta.acquire("p", "you", 31.0, 30.0)
    with pytest.raises(LeaseLostError):
        commands.answer(lease, number, {"done": True}, 32.0)
    assert commands.answered(number) is None


def test_a_command_is_taken_back_unless_it_was_answered(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    first, second = commands.ask("p", {}, 1.0), commands.ask("p", {}, 1.0)
    assert commands.withdraw(first)
    assert not commands.withdraw(first)
    commands.answer(lease, second, {"done": True}, 2.0)
    assert not commands.withdraw(second)
    assert commands.answered(second) == {"done": True}


def test_a_command_is_either_taken_back_or_answered(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    for _ in range(20):
        number = commands.ask("p", {}, 1.0)
        gate = threading.Barrier(2)
        taken_back: list[bool] = []

        def withdrawing(number: int = number, gate: threading.Barrier = gate, told: list[bool] = taken_back) -> None:
            gate.wait(10)
            told.append(commands.withdraw(number))

        thread = threading.Thread(target=withdrawing)
        thread.start()
        gate.wait(10)
        commands.answer(lease, number, {"done": True}, 2.0)
        thread.join()
        assert (commands.answered(number) is None) == taken_back[0]


def test_many_ask_at_once_and_none_is_lost(meta: MetaStore) -> None:
    commands = Commands(meta)
    numbers: list[int] = []

    def asking(who: int) -> None:
        numbers.extend(commands.ask("p", {"by": who}, 1.0) for _ in range(10))

    threads = [threading.Thread(target=asking, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [command.number for command in commands.waiting("p")]
    assert len(set(numbers)) == 40
