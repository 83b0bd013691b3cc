"""The epoch protocol under random events: order, at most two in flight, and no impossible step."""

from __future__ import annotations

import random

import pytest

from holdfast.epoch.protocol import Act, EpochProtocol, Instruction
from holdfast.errors import InvalidTransitionError


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("seed", range(50))
def test_random_runs_keep_the_order(seed, overlap):
    """A driver that does what it is told, and a world where jobs read and finish when they like."""
    chance = random.Random(seed)
    committed = chance.randrange(5)
    left_over = chance.randrange(3)
    protocol = EpochProtocol(committed, committed + left_over, overlap=overlap)
    total = committed + left_over + chance.randrange(12)
    reading: set[int] = set()
    running: set[int] = set()
    commits: list[int] = []
    for _ in range(2_000):
        instruction = protocol.next()
        assert instruction == protocol.next(), "asking changes nothing"
        if instruction is None:
            assert running, "nobody is told to do anything, and nothing is under way"
            epoch = chance.choice(sorted(running))
            if epoch in reading and chance.random() < 0.6:
                reading.discard(epoch)
                protocol.on_read(epoch)
            else:
                running.discard(epoch)
                reading.discard(epoch)
                protocol.on_finished(epoch)
        elif instruction.act is Act.PLAN:
            if protocol.planned == total:
                protocol.end()
            else:
                assert instruction.epoch == protocol.planned + 1
                protocol.on_planned(instruction.epoch)
        elif instruction.act is Act.LAUNCH:
            assert instruction.epoch <= protocol.planned
            if not overlap:
                assert not running
            assert not reading, "an epoch is launched when the one before has read its input"
            protocol.on_launched(instruction.epoch)
            running.add(instruction.epoch)
            reading.add(instruction.epoch)
            assert protocol.launched - protocol.committed <= 2
        elif instruction.act is Act.COMMIT:
            commits.append(instruction.epoch)
            protocol.on_committed(instruction.epoch)
        else:
            break
    else:
        raise AssertionError("the protocol does not end")
    assert commits == list(range(committed + 1, total + 1))
    assert not running


def test_epochs_overlap_once_the_first_has_read():
    protocol = EpochProtocol(0, 2)
    assert protocol.next() == Instruction(Act.LAUNCH, 1)
    protocol.on_launched(1)
    assert protocol.next() is None
    protocol.on_read(1)
    assert protocol.next() == Instruction(Act.LAUNCH, 2)
    protocol.on_launched(2)
    protocol.on_read(2)
    assert protocol.next() is None, "at most two are in flight"
    protocol.on_finished(2)
    assert protocol.next() is None, "epoch 2 waits for epoch 1"
    protocol.on_finished(1)
    assert protocol.next() == Instruction(Act.COMMIT, 1)
    protocol.on_committed(1)
    assert protocol.next() == Instruction(Act.COMMIT, 2)


def test_without_overlap_an_epoch_waits_for_the_commit_before():
    protocol = EpochProtocol(0, 2, overlap=False)
    protocol.on_launched(1)
    protocol.on_read(1)
    assert protocol.next() is None
    protocol.on_finished(1)
    protocol.on_committed(1)
    assert protocol.next() == Instruction(Act.LAUNCH, 2)


def test_after_the_end_what_is_planned_is_still_run():
    protocol = EpochProtocol(3, 4)
    protocol.end()
    assert protocol.next() == Instruction(Act.LAUNCH, 4)
    protocol.on_launched(4)
    protocol.on_finished(4)
    protocol.on_committed(4)
    assert protocol.next() == Instruction(Act.FINISH, 4)


@pytest.mark.parametrize(
    "event",
    [
        lambda p: p.on_planned(1),
        lambda p: p.on_planned(4),
        lambda p: p.on_launched(1),
        lambda p: p.on_launched(3),
        lambda p: p.on_read(2),
        lambda p: p.on_finished(0),
        lambda p: p.on_finished(2),
        lambda p: p.on_committed(1),
        lambda p: p.on_committed(2),
        lambda p: (p.on_finished(1), p.on_finished(1)),
        lambda p: (p.on_finished(1), p.on_committed(1), p.on_committed(1)),
        lambda p: (p.on_finished(1), p.on_committed(1), p.on_finished(1)),
    ],
    ids=[
        "planned-again", "planned-too-far", "launched-again", "launched-unplanned", "read-before-launch",
        "finished-long-ago", "finished-before-launch", "committed-unfinished", "committed-out-of-order",
        "finished-twice", "committed-twice", "finished-after-commit",
    ],
)  # fmt: skip
def test_impossible_events_raise(event):
    protocol = EpochProtocol(0, 2)
    protocol.on_launched(1)
    with pytest.raises(InvalidTransitionError) as caught:
        event(protocol)
    assert caught.value.epoch is not None
    assert caught.value.cure
