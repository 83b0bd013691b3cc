"""What Linear Road must answer, worked out row by row in plain Python: slow, and close to the words of the rules.

It goes over the reports twice: first it learns trips, statistics and accidents, then it sets tolls and charges them.
So it has nothing in common with the application, which sees each report once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import floor
from typing import Literal, NamedTuple, TypeAlias

__all__ = ["PositionReport", "RoadAnswers", "Rules", "road_answers"]

Rules: TypeAlias = Literal["paper", "walmart"]
Segment: TypeAlias = tuple[int, int, int]
"""Expressway, direction, segment."""

_ENTRY, _EXIT = 0, 4
_SCOPE = 5
_REPORTS_TO_STOP = 4


class PositionReport(NamedTuple):
    time: int
    vid: int
    spd: int
    xway: int
    lane: int
    dir: int
    seg: int
    pos: int

    @property
    def segment(self) -> Segment:
        return self.xway, self.dir, self.seg

    @property
    def place(self) -> tuple[int, int, int, int]:
        return self.xway, self.dir, self.lane, self.pos

    @property
    def minute(self) -> int:
        return self.time // 60 + 1


@dataclass(slots=True)
class RoadAnswers:
    """Notifications and alerts by vehicle and time, balances that may be answered and expenditures by request."""

    tolls: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """The speed shown and the toll."""
    alerts: dict[tuple[int, int], Segment] = field(default_factory=dict)
    balances: dict[int, set[int]] = field(default_factory=dict)
    expenditures: dict[int, int] = field(default_factory=dict)


def road_answers(
    reports: Iterable[PositionReport],
    balance_requests: Iterable[tuple[int, int, int]],
    expenditure_requests: Iterable[tuple[int, int, int, int]],
    history: Mapping[tuple[int, int, int], int],
    rules: Rules = "paper",
) -> RoadAnswers:
    """Requests for balances are (time, vehicle, request), those for expenditures (vehicle, day, expressway, request);
    `history` has tolls by vehicle, day and expressway."""
    answers = RoadAnswers()
    trips = _trips(reports)
    taken = sorted(report for vehicle in trips.values() for trip in vehicle for report in trip)
    speeds: dict[tuple[Segment, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for report in taken:
        speeds[report.segment, report.minute][report.vid].append(report.spd)
    accidents, tolls = _accidents(trips, rules), _Tolls(speeds, rules)
    booked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for vid, vehicle in trips.items():
        for trip in vehicle:
            last: PositionReport | None = None
            pending = 0
            for report in trip:
                if last is None or report.seg != last.seg:
                    booked[vid].append((report.time, pending))
                    pending = 0
                    if report.lane != _EXIT:
                        shown, toll = tolls.at(report.segment, report.minute)
                        ahead = _nearest(report, accidents)
                        pending = toll if ahead is None else 0
                        answers.tolls[vid, report.time] = shown, pending
                        if ahead is not None:
                            answers.alerts[vid, report.time] = report.xway, report.dir, ahead
                last = report
    for time, vid, request in balance_requests:
        answers.balances[request] = {
            sum(toll for at, toll in booked[vid] if at <= moment) for moment in range(time - 60, time + 1)
        } | {sum(toll for at, toll in booked[vid] if at < time)}
    for vid, day, xway, request in expenditure_requests:
        answers.expenditures[request] = history.get((vid, day, xway), 0)
    return answers


def _trips(reports: Iterable[PositionReport]) -> dict[int, list[list[PositionReport]]]:
    """The reports of each vehicle by trips, from an entry to an exit; what lies outside of them is left out."""
    trips: dict[int, list[list[PositionReport]]] = defaultdict(list)
    for report in sorted(reports):
        mine = trips[report.vid]
        if not mine or mine[-1][-1].lane == _EXIT:
            if report.lane != _ENTRY:
                continue
            mine.append([])
        mine[-1].append(report)
    return trips


def _accidents(
    trips: Mapping[int, list[list[PositionReport]]], rules: Rules
) -> dict[tuple[int, int], dict[int, set[int]]]:
    """By expressway and direction, and segment: the minutes in which an accident there counts."""
    events: list[tuple[int, int, PositionReport, tuple[int, int, int, int]]] = []
    for vehicle in trips.values():
        for trip in vehicle:
            still = 0
            for number, report in enumerate(trip):
                before = trip[number - 1] if number else None
                if before is not None and report.place == before.place:
                    still += 1
                    if still >= _REPORTS_TO_STOP:
                        events.append((report.time, still == _REPORTS_TO_STOP, report, report.place))
                else:
                    if before is not None and still >= _REPORTS_TO_STOP:
                        events.append((report.time, -1, before, before.place))
                    still = 1
    counts: dict[tuple[int, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    standing: dict[tuple[int, int, int, int], int] = defaultdict(int)
    over: set[Segment] = set()
    for time, change, report, place in sorted(events, key=lambda event: event[0]):
        minute, minutes = time // 60 + 1, counts[report.xway, report.dir][report.seg]
        standing[place] += change
        if rules == "walmart" and report.segment in over:
            continue
        if change >= 0 and standing[place] >= 2:
            minutes.add(minute + 1)
        if change < 0 and standing[place] == 1 and rules == "walmart":
            minutes.discard(minute + 1)
            over.add(report.segment)
    return counts


def _nearest(report: PositionReport, accidents: Mapping[tuple[int, int], Mapping[int, set[int]]]) -> int | None:
    """The segment of the nearest accident ahead that counts in the minute of a report."""
    downstream = 1 if report.dir == 0 else -1
    for distance in range(_SCOPE):
        segment = report.seg + downstream * distance
        if report.minute in accidents.get((report.xway, report.dir), {}).get(segment, ()):
            return segment
    return None


class _Tolls:
    """What is shown and taken in each segment and minute, worked out when it is asked for first."""

    def __init__(self, speeds: Mapping[tuple[Segment, int], Mapping[int, list[int]]], rules: Rules) -> None:
        self._speeds, self._rules = speeds, rules
        self._known: dict[tuple[Segment, int], tuple[int, int]] = {}

    def at(self, segment: Segment, minute: int) -> tuple[int, int]:
        """The speed that is shown, and the toll if there is no accident ahead."""
        if (segment, minute) not in self._known:
            self._known[segment, minute] = self._worked_out(segment, minute)
        return self._known[segment, minute]

    def _worked_out(self, segment: Segment, minute: int) -> tuple[int, int]:
        minutes = [cell for age in range(5, 0, -1) if (cell := self._speeds.get((segment, minute - age))) is not None]
        if not minutes:
            return 0, 0
        cars = len(self._speeds.get((segment, minute - 1), ()))
        if self._rules == "paper":
            means = [sum(sum(mine) / len(mine) for mine in cell.values()) / len(cell) for cell in minutes]
            speed = sum(means) / len(means)
            shown = int(speed)
        else:
            every = [spd for cell in minutes for mine in cell.values() for spd in mine]
            speed = shown = floor(sum(every) / len(every) + 0.5)
        return shown, 0 if cars <= 50 or speed >= 40 else 2 * (cars - 50) ** 2
