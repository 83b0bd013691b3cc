"""Who has which number in a crew: whoever stays keeps it, and spares fill what is free."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from holdfast.epoch.crew_messages import Enrol
from holdfast.spark.crew_roster import CrewMember, CrewRoster
from holdfast.task.channel import Channel


def member(job: int) -> CrewMember:
    return CrewMember(cast("Channel", object()), Enrol(job, 0, "127.0.0.1", 1, "here", job), 0.0)


def jobs(roster: CrewRoster) -> list[int]:
    return [found.enrolment.job for _, found in sorted(roster.numbered.items())]


def test_a_spare_fills_the_place_of_one_that_left() -> None:
    roster = CrewRoster(2, members=[member(1), member(2), member(3)])
    assert roster.regroup()
    assert jobs(roster) == [1, 2]
    del roster.members[0]
    assert not roster.stands
    assert roster.regroup()
    assert jobs(roster) == [3, 2]


def test_without_enough_workers_nothing_changes() -> None:
    roster = CrewRoster(2, members=[member(1)])
    assert not roster.regroup()
    assert not roster.stands


def test_a_crew_that_is_to_grow_goes_on_as_it_was_until_it_can() -> None:
    roster = CrewRoster(2, members=[member(1), member(2)])
    roster.regroup()
    roster.wanted = 4
    assert not roster.changes
    roster.members += [member(3)]
    assert roster.regroup()
    assert jobs(roster) == [1, 2]
    roster.members += [member(4)]
    assert roster.changes
    assert roster.regroup()
    assert jobs(roster) == [1, 2, 3, 4]
    roster.wanted = 1
    assert roster.regroup()
    assert jobs(roster) == [1]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("come"), st.just(0)),
            st.tuples(st.just("leave"), st.integers(0, 9)),
            st.tuples(st.just("want"), st.integers(1, 6)),
        ),
        max_size=40,
    )
)
def test_numbers_are_whole_and_whoever_can_keep_its_number_does(steps: list[tuple[str, int]]) -> None:
    roster, job = CrewRoster(2), 0
    for what, number in steps:
        if what == "come":
            job += 1
            roster.members.append(member(job))
        elif what == "leave" and roster.members:
            del roster.members[number % len(roster.members)]
        elif what == "want":
            roster.wanted = number
        before = {found.enrolment.job: at for at, found in roster.numbered.items()}
        if roster.regroup():
            assert sorted(roster.numbered) == list(range(roster.size))
            assert roster.stands
            after = {found.enrolment.job: at for at, found in roster.numbered.items()}
            assert all(after.get(one) == at for one, at in before.items() if at < roster.size)
        else:
            assert len(roster.members) < roster.wanted
