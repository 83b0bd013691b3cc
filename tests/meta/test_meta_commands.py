"""Commands to pipelines: asked by anybody, seen in order, answered once, by the holder of the lease."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.transaction import committing
from holdfast.errors import CommandGoneError, LeaseLostError
from holdfast.meta import Command, Commands, MetaStore
from holdfast.plan.scale_command import ScaleAnswer
from stored_texts import text


@pytest.fixture
def meta(where: Path | str) -> Iterator[MetaStore]:
    opened = MetaStore(where, sync=False)
    yield opened
    opened.close()


def test_commands_wait_in_their_order_until_they_are_answered(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    first = commands.ask("p", text({"do": "this"}), 1.0)
    second = commands.ask("p", text({"do": "that"}), 2.0)
    commands.ask("q", text({"do": "else"}), 2.0)
    assert commands.waiting("p") == [Command(first, text({"do": "this"})), Command(second, text({"do": "that"}))]
    commands.answer(lease, first, text({"done": True}), 3.0)
    with pytest.raises(CommandGoneError):
        commands.answer(lease, first, text({"done": False}), 4.0)
    assert commands.answered(first) == text({"done": True}), "the first answer stays"
    assert commands.answered(second) is None
    assert [command.number for command in commands.waiting("p")] == [second]


def test_who_lost_the_lease_cannot_answer(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    number = commands.ask("p", text({}), 1.0)
    meta.acquire("p", "you", 31.0, 30.0)
    with pytest.raises(LeaseLostError):
        commands.answer(lease, number, text({"done": True}), 32.0)
    assert commands.answered(number) is None


def test_a_command_is_taken_back_unless_it_was_answered(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    first, second = commands.ask("p", text({}), 1.0), commands.ask("p", text({}), 1.0)
    assert commands.withdraw(first)
    assert not commands.withdraw(first)
    commands.answer(lease, second, text({"done": True}), 2.0)
    assert not commands.withdraw(second)
    assert commands.answered(second) == text({"done": True})


def test_a_command_is_either_taken_back_or_answered(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    for _ in range(20):
        number = commands.ask("p", text({}), 1.0)
        gate = threading.Barrier(2)
        taken_back: list[bool] = []

        def withdrawing(number: int = number, gate: threading.Barrier = gate, told: list[bool] = taken_back) -> None:
            gate.wait(10)
            told.append(commands.withdraw(number))

        thread = threading.Thread(target=withdrawing)
        thread.start()
        gate.wait(10)
        with contextlib.suppress(CommandGoneError):
            commands.answer(lease, number, text({"done": True}), 2.0)
        thread.join()
        assert (commands.answered(number) is None) == taken_back[0]


def test_what_a_command_asks_for_is_not_done_once_it_was_taken_back(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    number = commands.ask("p", text({"do": "scale"}), 1.0)
    assert commands.withdraw(number), "after it was read, and before the plan is written"

    def obey() -> None:
        with committing(meta, lease, 1) as transaction:
            transaction.plan(EpochPlan({}, {}, {}, (1,), {}), 2.0)
            transaction.answer(number, ScaleAnswer(1), 2.0)

    with pytest.raises(CommandGoneError):
        obey()
    assert meta.planned("p") == []


def test_answers_are_kept_for_a_day(meta: MetaStore) -> None:
    commands = Commands(meta)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    numbers = [commands.ask("p", text({}), 0.0) for _ in range(4)]
    day = 86_400.0
    commands.answer(lease, numbers[0], text({"done": 0}), 1.0)
    commands.answer(lease, numbers[1], text({"done": 1}), 0.9 * day)
    assert commands.answered(numbers[0]) == text({"done": 0})
    commands.answer(lease, numbers[2], text({"done": 2}), 1.1 * day)
    assert [commands.answered(number) for number in numbers] == [None, text({"done": 1}), text({"done": 2}), None]
    assert [command.number for command in commands.waiting("p")] == [numbers[3]], "what is not answered stays"


def test_many_ask_at_once_and_none_is_lost(meta: MetaStore) -> None:
    commands = Commands(meta)
    numbers: list[int] = []

    def asking(who: int) -> None:
        numbers.extend(commands.ask("p", text({"by": who}), 1.0) for _ in range(10))

    threads = [threading.Thread(target=asking, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [command.number for command in commands.waiting("p")]
    assert len(set(numbers)) == 40
