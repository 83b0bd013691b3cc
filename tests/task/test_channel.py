"""Channels between the processes of a run: who knows the secret is heard, and nobody else."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.epoch.crew_messages import (
    CrewHead,
    Enrol,
    Parcel,
    Roster,
    TaskEnded,
    decode_head,
    encode_head,
)
from holdfast.errors import CorruptRecordError
from holdfast.task.channel import Channel, ChannelClosedError, accept, connect, listen
from holdfast_lab.chaos.fellow_connections import drop_all

SECRET = b"s" * 32


@contextmanager
def pair(secret: bytes = SECRET) -> Iterator[tuple[Channel, Channel]]:
    """Both ends, the one that has connected first."""
    door = listen("127.0.0.1")
    accepted: list[Channel] = []
    thread = threading.Thread(target=lambda: accepted.append(accept(door.accept()[0], SECRET)))
    thread.start()
    try:
        here = connect("127.0.0.1", door.getsockname()[1], secret)
        thread.join()
        yield here, accepted[0]
        here.close()
        accepted[0].close()
    finally:
        door.close()
        thread.join()


@pytest.mark.parametrize("size", [0, 1, 1 << 16, 3_000_000])
def test_messages_arrive_as_they_were_sent_and_in_their_order(size: int) -> None:
    heads: list[CrewHead] = [Enrol(1, 0, "h", 5, "m", 7), Parcel(1, 2, 1, 0, 3), TaskEnded(1, 2, 1, 0)]
    with pair() as (here, there):
        sending = threading.Thread(target=lambda: [here.send(head, b"x" * size) for head in heads])
        sending.start()
        assert [there.receive() for _ in heads] == [(head, b"x" * size) for head in heads]
        sending.join()


def test_the_other_side_that_is_gone_is_noticed() -> None:
    with pair() as (here, there):
        here.close()
        with pytest.raises(ChannelClosedError):
            there.receive()


@contextmanager
def ends() -> Iterator[tuple[Channel, socket.socket, socket.socket]]:
    """A channel, its link, and the other end of it, which nobody reads."""
    with listen("127.0.0.1") as door, socket.create_connection(door.getsockname()) as here, door.accept()[0] as there:
        yield Channel(here), here, there


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nothing is known of a connection")
def test_a_system_that_acknowledges_nothing_is_told_from_a_reader_that_is_busy() -> None:
    with ends() as (deaf, here, there), ends() as (busy, full, _):
        drop_all(there)
        here.sendall(b"lost")
        full.setblocking(False)
        with suppress(BlockingIOError):
            while full.send(bytes(1 << 16)):
                pass
        until = time.monotonic() + 60
        while not deaf.unanswered and time.monotonic() < until:
            assert not deaf.wait(0.02)
        assert deaf.unanswered
        assert not busy.unanswered, "its system has answered"


@pytest.mark.parametrize("attack", ["another secret", "thrown back", "silence"])
def test_who_does_not_know_the_secret_is_not_heard(attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.task.channel._SHAKE_SECONDS", 0.3)
    door = listen("127.0.0.1")
    refused: list[Exception] = []

    def take() -> None:
        try:
            accept(door.accept()[0], SECRET)
        except ChannelClosedError as error:
            refused.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    address = ("127.0.0.1", door.getsockname()[1])
    actions: dict[str, Callable[[], object]] = {
        "another secret": lambda: connect(*address, b"t" * 32),
        "thrown back": lambda: _throw_back(address),
        "silence": lambda: socket.create_connection(address),
    }
    left = None
    with suppress(ChannelClosedError):
        left = actions[attack]()
    thread.join(5)
    door.close()
    if isinstance(left, socket.socket):
        left.close()
    assert len(refused) == 1


def _throw_back(address: tuple[str, int]) -> None:
    """Answers with what it is sent."""
    with socket.create_connection(address, timeout=2) as link:
        for _ in range(2):
            data = link.recv(32)
            if data:
                link.sendall(data)
        link.recv(32)


@given(st.binary(max_size=200))
def test_a_head_is_decoded_or_refused(data: bytes) -> None:
    try:
        head = decode_head(data)
    except CorruptRecordError:
        return
    assert decode_head(encode_head(head)) == head


def test_heads_come_back_as_they_were() -> None:
    head = Roster(3, 1, (("a", 1), ("b", 2)))
    assert decode_head(encode_head(head)) == head
