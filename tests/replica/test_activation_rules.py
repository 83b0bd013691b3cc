"""Commands to activate and deactivate replicas: they are reached from wherever one is, whoever fails meanwhile, and
there is no moment in which nobody processes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.replica.activation_rules import is_active, resignation, settled, stays_away, turns
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.seats import Activate, Beat, Enlist, SeatHolder, Seats, Seize

BOTH = ("a", "b")
READY_STEPS = 2


class World:
    """Hosts that do what the seats ask for, step by step; one is ready some steps after it was asked."""

    def __init__(self, hosts: str = "ab", scheme: Scheme = ACTIVE_REPLICATION) -> None:
        self.hosts = tuple(hosts)
        self.seats = Seats(scheme=scheme)
        self.alive = dict.fromkeys(self.hosts, 1)
        self.since: dict[str, tuple[object, int]] = {}
        self.reluctant: set[str] = set()

    def command(self, active: tuple[str, ...], placed: tuple[str, ...] = BOTH) -> None:
        assert self.seats.change(Activate(self.seats.orders, active, placed))

    def ready(self, host: str) -> Scheme | None:
        asked = (self.seats.secondary, self.seats.scheme)
        known, steps = self.since.get(host, (None, 0))
        self.since[host] = (asked, steps + 1 if known == asked else 0)
        mine = self.seats.secondary is not None and self.seats.secondary.host == host
        return self.seats.scheme if mine and self.since[host][1] >= READY_STEPS else None

    def gone(self, seat: SeatHolder | None) -> bool:
        return seat is None or self.alive[seat.host] != seat.incarnation

    def step(self, host: str) -> None:
        seats, incarnation = self.seats, self.alive[host]
        if not incarnation:
            return
        seats.change(Beat(host, incarnation, 0, self.ready(host)))
        if seats.primary is not None and seats.primary == SeatHolder(host, incarnation, seats.primary.token):
            leaving = resignation(seats, host, alone=self.gone(seats.secondary))
            if leaving is not None:
                assert seats.change(leaving)
                self.reluctant.add(host)
                return
            for turn in turns(seats):
                assert seats.change(turn)
            return
        alone = self.gone(seats.secondary)
        mine = seats.secondary is not None and seats.secondary == SeatHolder(host, incarnation, seats.secondary.token)
        request: Seize | Enlist | None = None
        if self.gone(seats.primary) and not (host in self.reluctant and not alone):
            seen = None if seats.primary is None else seats.members.get(seats.primary.host)
            request = Seize(host, incarnation, seats.primary, seen) if mine or alone else None
        elif alone:
            seen = None if seats.secondary is None else seats.members.get(seats.secondary.host)
            request = Enlist(host, incarnation, seats.secondary, seen)
        else:
            self.reluctant.discard(host)
        if request is not None and not stays_away(seats, host, request, alone=alone):
            seats.change(request)

    def settle(self) -> None:
        for _ in range(40):
            for host in self.hosts:
                self.step(host)

    def processing(self) -> list[str]:
        return [host for host in self.hosts if self.alive[host] and is_active(self.seats, host)]


@st.composite
def commands(draw: st.DrawFn, hosts: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    placed = tuple(draw(st.permutations(hosts))[:2])
    return draw(st.sampled_from([placed[:1], placed[1:], placed])), placed


@st.composite
def stories(draw: st.DrawFn) -> tuple[str, list[tuple[str, Any]], tuple[tuple[str, ...], tuple[str, ...]]]:
    hosts = draw(st.sampled_from(["ab", "abc", "abcd"]))
    one = st.sampled_from(hosts)
    events = st.one_of(
        st.tuples(st.just("step"), one),
        st.tuples(st.just("to"), commands(hosts)),
        st.tuples(st.sampled_from(["kill", "start"]), one),
    )
    return hosts, draw(st.lists(events, max_size=60)), draw(commands(hosts))


@settings(max_examples=400)
@given(st.sampled_from(wheel.SCHEMES), stories())
def test_what_is_commanded_last_is_what_comes_to_be(scheme: Scheme, story: Any) -> None:
    hosts, events, (active, placed) = story
    world, incarnation = World(hosts, scheme), 1
    world.settle()
    for what, which in events:
        if what == "step":
            world.step(which)
        elif what == "to":
            world.command(*which)
        elif what == "kill":
            world.alive[which] = 0
        elif not world.alive[which]:
            incarnation += 1
            world.alive[which] = incarnation
    for host in hosts:
        if not world.alive[host]:
            incarnation += 1
            world.alive[host] = incarnation
    world.command(active, placed)
    world.settle()
    assert settled(world.seats)
    assert sorted(world.processing()) == sorted(active)


@settings(max_examples=200)
@given(st.lists(st.tuples(commands("abc"), st.integers(1, 12)), min_size=1, max_size=10),
       st.randoms(use_true_random=False))  # fmt: skip
def test_while_nobody_fails_somebody_processes(orders: list[Any], random: Any) -> None:
    world = World("abc")
    world.settle()
    for command, steps in orders:
        if world.seats.primary is None:
            world.settle()
        world.command(*command)
        for _ in range(steps):
            world.step(random.choice(world.hosts))
            if world.seats.primary is None:  # then who takes the seat next has processed all the time
                second = world.seats.secondary
                assert second is not None
                assert world.seats.scheme is ACTIVE_REPLICATION
                assert world.seats.members[second.host].ready is ACTIVE_REPLICATION
            else:
                assert world.processing()


def test_when_those_that_are_placed_are_gone_another_host_takes_over() -> None:
    world = World("abc")
    world.settle()
    world.command(BOTH)
    world.settle()
    world.alive["a"] = world.alive["b"] = 0
    world.settle()
    assert world.processing() == ["c"]
    world.alive["b"] = 7
    world.settle()
    assert world.seats.primary is not None
    assert world.seats.primary.host == "b"


def test_commands_that_are_sent_twice_or_come_late_do_nothing() -> None:
    seats = Seats()
    first, second = Activate(0, ("a",), BOTH), Activate(1, BOTH, BOTH)
    assert seats.change(first)
    assert not seats.change(first)
    assert seats.change(second)
    assert not seats.change(first)
    assert seats.active == BOTH
    assert Seats.decode(seats.encode()) == seats
    assert not seats.change(Activate(2, (), BOTH)), "somebody has to process"
    assert seats.change(Activate(2, None, None))
    assert not turns(seats), "nobody commands any more"


def test_seats_that_were_written_before_there_were_commands_can_be_read() -> None:
    value = json.loads(Seats().encode())
    for name in ("orders", "active", "placed"):
        del value[name]
    assert Seats.decode(json.dumps(value)) == Seats()


def test_a_host_that_a_fragment_is_not_placed_on_stays_away_while_there_is_another() -> None:
    seats = Seats()
    seats.change(Activate(0, ("a",), BOTH))
    assert stays_away(seats, "c", Enlist("c", 1, None, None), alone=True)
    assert not stays_away(seats, "b", Enlist("b", 1, None, None), alone=True)
    assert not stays_away(seats, "c", Seize("c", 1, None, None), alone=True), "nobody else is there"
    assert stays_away(seats, "c", Seize("c", 1, None, None), alone=False)
