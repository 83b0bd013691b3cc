"""Commands to activate and deactivate replicas: they are reached from wherever one is, whoever fails meanwhile, and
there is no moment in which nobody processes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.replica.activation import is_active, resignation, settled, stays_away, turns
from holdfast.replica.schemes import Scheme
from holdfast.replica.seating import Activate, Beat, Enlist, Seats, Seize

HOSTS = ("a", "b")
BOTH = ("a", "b")
COMMANDS = st.sampled_from([("a",), ("b",), BOTH])


class World:
    """Two hosts that do what the seats ask for, step by step; a host is ready some steps after it was asked."""

    def __init__(self, scheme: Scheme = Scheme.ACTIVE_REPLICATION) -> None:
        self.seats = Seats(scheme=scheme)
        self.alive = {"a": 1, "b": 1}
        self.ready: dict[str, Scheme | None] = {"a": None, "b": None}
        self.reluctant: set[str] = set()

    def command(self, active: tuple[str, ...]) -> None:
        assert self.seats.change(Activate(self.seats.orders, active, BOTH))

    def step(self, host: str) -> None:
        seats, incarnation = self.seats, self.alive[host]
        if not incarnation:
            return
        second = seats.secondary
        mine = second is not None and second.host == host
        self.ready[host] = seats.scheme if mine else None
        seats.change(Beat(host, incarnation, 0, self.ready[host]))
        if seats.primary is not None and seats.primary.host == host:
            leaving = resignation(seats, host)
            if leaving is not None:
                assert seats.change(leaving)
                self.reluctant.add(host)
                return
            for each in turns(seats):
                assert seats.change(each)
            return
        gone = seats.primary is None or self.alive[seats.primary.host] != seats.primary.incarnation
        if gone and not (host in self.reluctant and seats.secondary is not None):
            seen = None if seats.primary is None else seats.members.get(seats.primary.host)
            seats.change(Seize(host, incarnation, seats.primary, seen))
        elif seats.secondary is None or self.alive[seats.secondary.host] != seats.secondary.incarnation:
            seen = None if seats.secondary is None else seats.members.get(seats.secondary.host)
            seats.change(Enlist(host, incarnation, seats.secondary, seen))
        else:
            self.reluctant.discard(host)

    def settle(self) -> None:
        for _ in range(20):
            for host in HOSTS:
                self.step(host)

    def processing(self) -> list[str]:
        return [host for host in HOSTS if self.alive[host] and is_active(self.seats, host)]


@settings(max_examples=300)
@given(
    st.sampled_from(Scheme),
    st.lists(st.one_of(st.sampled_from([("step", "a"), ("step", "b")]), COMMANDS.map(lambda each: ("to", each)),
                       st.sampled_from([("kill", "a"), ("kill", "b"), ("start", "a"), ("start", "b")])), max_size=60),
    COMMANDS,
)  # fmt: skip
def test_what_is_commanded_last_is_what_comes_to_be(
    scheme: Scheme, story: list[tuple[str, object]], last: tuple
) -> None:  # type: ignore[type-arg]
    world, incarnation = World(scheme), 1
    world.settle()
    for what, which in story:
        if what == "step":
            world.step(str(which))
        elif what == "to":
            world.command(tuple(which))  # type: ignore[arg-type]
        elif what == "kill":
            world.alive[str(which)] = 0
        elif not world.alive[str(which)]:
            incarnation += 1
            world.alive[str(which)] = incarnation
    for host in HOSTS:
        if not world.alive[host]:
            incarnation += 1
            world.alive[host] = incarnation
    world.command(last)
    world.settle()
    assert settled(world.seats)
    assert sorted(world.processing()) == sorted(last)


@settings(max_examples=200)
@given(st.lists(st.tuples(COMMANDS, st.integers(1, 8)), min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_while_nobody_fails_somebody_processes(commands: list[tuple[tuple[str, ...], int]], random: object) -> None:
    world = World()
    world.settle()
    for command, steps in commands:
        world.command(command)
        for _ in range(steps):
            world.step(random.choice(HOSTS))  # type: ignore[attr-defined]
            assert world.processing()
            if world.seats.primary is None:  # then who takes the seat next has processed all the time
                second = world.seats.secondary
                assert second is not None
                assert world.seats.scheme is Scheme.ACTIVE_REPLICATION
                assert world.seats.members[second.host].ready is Scheme.ACTIVE_REPLICATION


def test_commands_that_are_sent_twice_or_come_late_do_nothing() -> None:
    seats = Seats()
    first, second = Activate(0, ("a",), BOTH), Activate(1, BOTH, BOTH)
    assert seats.change(first)
    assert not seats.change(first)
    assert seats.change(second)
    assert not seats.change(first)
    assert seats.active == BOTH
    assert Seats.from_json(seats.to_json()) == seats
    assert not seats.change(Activate(2, (), BOTH)), "somebody has to process"
    assert seats.change(Activate(2, None, None))
    assert not turns(seats), "nobody commands any more"


def test_seats_that_were_written_before_there_were_commands_can_be_read() -> None:
    value = Seats().to_json()
    for name in ("orders", "active", "placed"):
        del value[name]
    assert Seats.from_json(value) == Seats()


def test_a_host_that_a_fragment_is_not_placed_on_stays_away_while_there_is_another() -> None:
    seats = Seats()
    seats.change(Activate(0, ("a",), BOTH))
    assert stays_away(seats, "c", Enlist("c", 1, None, None))
    assert not stays_away(seats, "b", Enlist("b", 1, None, None))
    assert not stays_away(seats, "c", Seize("c", 1, None, None)), "nobody else is there"
    seats.change(Beat("b", 1, 0, None))
    seats.change(Enlist("b", 1, None, None))
    assert stays_away(seats, "c", Seize("c", 1, None, None))
