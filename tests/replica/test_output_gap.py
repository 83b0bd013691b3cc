"""The gap in the output that a takeover makes, as the host that takes over reckons it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.replica.output_gap import CommitTimes, FirstOutput, Takeover

seconds = st.floats(0.0, 30.0)


@given(
    rhythm=st.floats(0.01, 2.0), part=st.floats(0.0, 1.0), silence=seconds, steps=seconds, epoch=st.floats(0.01, 5.0),
    skew=st.floats(-1e4, 1e4), idle=st.floats(0.0, 1e4),
)  # fmt: skip
def test_it_is_what_a_reader_sees_without_what_input_made_it_wait_for(
    rhythm: float, part: float, silence: float, steps: float, epoch: float, skew: float, idle: float
) -> None:
    """The primary commits, beats for the last time within its rhythm, and dies; clocks of hosts may differ."""
    last = 1_000.0
    beat = last + part * rhythm
    seated = beat + silence
    ready = seated + steps
    started = ready + idle
    first = started + epoch
    taken = Takeover(silence, seated, ready, replayed=0)
    told = taken.gap(FirstOutput(first, started, first, last + skew), rhythm)
    seen = first - last - max(0.0, idle - 0.25)
    assert seen - rhythm - 1e-6 <= told <= seen + rhythm + 1e-6, "whatever the clocks say"
    if skew == 0:
        assert told == pytest.approx(seen, abs=1e-6)


def test_without_a_commit_before_it_is_taken_at_worst() -> None:
    assert Takeover(1.0, 10.0, 12.0, 0).gap(FirstOutput(13.0, 12.0, 13.0, None), 0.5) == 4.5


def test_where_both_put_out_it_is_the_longest_time_between_two_commits() -> None:
    commits = CommitTimes()
    for at in (1.0, 1.5, 2.0, 3.4, 3.9):
        commits.add(at - 0.3, at)
    assert commits.longest(since=1.6) == pytest.approx(1.4 - (1.1 - 0.25))
    busy = CommitTimes()
    for started, at in ((0.5, 1.0), (1.0, 1.5), (1.5, 2.9), (2.9, 3.4)):
        busy.add(started, at)
    assert busy.longest(since=1.6) == pytest.approx(1.4)
    assert busy.longest(since=3.0) == pytest.approx(0.5)
    assert CommitTimes().longest(0.0) == 0.0
