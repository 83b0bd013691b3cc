"""Connections that say nothing, or say it slowly: they keep nobody out, and cost little."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st
from receiving import Serve, ndjson, numbered

from holdfast.ingress.crowd import MOST_STRANGERS, Crowd

LISTEN = {"tcp": "127.0.0.1:0"}
TOKEN = "s3cret"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_strangers_and_members_stay_within_their_limits(arrivals: list[tuple[str, bool]]) -> None:
    crowd: Crowd[int] = Crowd(strangers=5, members=7)
    strangers, members, cut = set[int](), set[int](), set[int]()
    for number, (address, introduced) in enumerate(arrivals):
        out = crowd.admit(number, address)
        strangers.add(number)
        if out is not None:
            strangers.remove(out)
            cut.add(out)
        if introduced and crowd.introduce(number):
            strangers.remove(number)
            members.add(number)
        assert len(strangers) <= 5
        assert len(members) <= 7
        assert set(crowd.everybody()) == strangers | members
    assert not any(crowd.introduce(number) for number in cut)


def test_the_crowded_address_gives_way() -> None:
    crowd: Crowd[str] = Crowd(strangers=3, members=1)
    assert crowd.admit("honest", "10.0.0.1") is None
    assert [crowd.admit(f"silent {number}", "10.0.0.2") for number in range(4)] == [None, None, "silent 0", "silent 1"]
    assert crowd.introduce("honest")


def test_silent_connections_do_not_keep_out_a_client_with_the_token(serve: Serve) -> None:
    receiving = serve(**LISTEN, token=TOKEN)
    with ExitStack() as stack:
        silent = [stack.enter_context(receiving.connect()) for _ in range(2 * MOST_STRANGERS + 50)]
        silent[-1].send("#tok")

        with receiving.connect() as client:
            client.send(f"#token {TOKEN}\n".encode() + ndjson(numbered(0, 3)))
            client.until("ok 3")
    assert receiving.rows() == numbered(0, 3)


def test_a_stranger_is_given_a_short_line_and_a_short_time(serve: Serve) -> None:
    receiving = serve(**LISTEN, token=TOKEN, idle=0.5)

    with receiving.connect() as client:
        client.send("#token " + "x" * 5000)
        assert client.answer().startswith("error 413 ")
    with receiving.connect() as client:
        client.send("#token")
        assert client.answer() == ""  # cut off


def test_a_line_that_comes_byte_by_byte_must_end_in_time(serve: Serve) -> None:
    receiving = serve(**LISTEN, idle=1.0)

    with receiving.connect() as client:
        client.send(ndjson(numbered(0, 1)))
        client.until("ok 1")
        began = time.monotonic()
        client.socket.settimeout(0.1)
        answer = b""
        while not answer and time.monotonic() - began < 20:
            try:
                client.send("x")
                answer = client.socket.recv(1000)
            except TimeoutError:
                pass
    assert answer.startswith(b"error 408 the line did not end within 1 s")
    assert receiving.rows() == numbered(0, 1)


def test_a_process_without_descriptors_waits_and_goes_on(serve: Serve) -> None:
    receiving = serve(**LISTEN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = [socket.socket() for _ in range(3)]
    with ExitStack() as stack:
        for each in waiting:
            stack.enter_context(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) - 1, hard))
        try:
            # The lowest free number is at the limit now: nothing can be opened until it is lifted.
            while True:
                try:
                    stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
                except OSError:
                    break
            for each in waiting:
                each.connect(receiving.address("tcp"))
            began = time.process_time()
            time.sleep(1.0)
            spent = time.process_time() - began
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert spent < 0.5
        waiting[-1].sendall(ndjson(numbered(0, 1)))
        waiting[-1].settimeout(20)
        assert waiting[-1].recv(100) == b"ok 1\n"
