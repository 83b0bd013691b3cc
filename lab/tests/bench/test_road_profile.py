"""CPU time by part of the work."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from holdfast_lab.bench.road_profile import PARTS, PartMeter, RoadProfile


class Work:
    """Spends a unit of time at each step."""

    now = 0.0

    def spend(self) -> None:
        Work.now += 1.0

    def whole(self) -> None:
        self.spend()
        assert list(self.stepwise()) == [1, 2]
        self.spend()

    def stepwise(self) -> Iterator[int]:
        self.spend()
        yield 1
        self.spend()
        yield 2


def test_time_counts_for_the_innermost_part_and_not_between_the_steps_of_a_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "process_time", lambda: Work.now)
    monkeypatch.setattr(Work, "whole", Work.whole)  # both are put back at the end
    monkeypatch.setattr(Work, "stepwise", Work.stepwise)
    meter, work = PartMeter(), Work()
    meter.reset()
    meter.watch(Work, "whole", "update")
    meter.watch(Work, "stepwise", "read")
    work.spend()
    work.whole()
    for _ in work.stepwise():
        work.spend()
    assert meter.taken() == {**dict.fromkeys(PARTS, 0.0), "update": 2.0, "read": 4.0, "rest": 3.0}


def test_a_profile_says_each_part_and_all_of_it() -> None:
    profile = RoadProfile(3, 100, 1, dict.fromkeys(PARTS, 0.5))
    assert profile.total == 0.5 * len(PARTS)
    assert len(profile.lines()) == len(PARTS) + 2
    assert profile.to_json()["cpu_us_per_tuple"] == profile.total
