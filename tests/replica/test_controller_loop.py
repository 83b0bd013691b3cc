"""The controller at a host: from epochs that are reported to steps of the wheel in the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.epoch.report import EpochReport
from holdfast.meta import MetaStore
from holdfast.plan.cuts import FragmentLinks
from holdfast.replica.controller_loop import ControllerLoop
from holdfast.replica.deployment import Deployment
from holdfast.replica.fragment_notes import Divergence, StoredNotes
from holdfast.replica.host_events import HostEvent, SchemeDecided
from holdfast.replica.keeper import Timing
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.membership import Membership
from holdfast.replica.scheme_change import turn
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.seat_store import Agreed, Agreement
from holdfast.replica.seats import Beat, Enlist, SeatsRequest, StopReplica, Turn


def report(epoch: int, rows: int, started: float, seconds: float = 0.02) -> EpochReport:
    return EpochReport(
        fragment="f", epoch=epoch, rows=rows, entered=rows, started=started, committed=started + seconds,
        seconds=seconds, output_rows=1, late_rows=0, bad_rows=0, state_rows=1, state_bytes=10_000_000,
        written_bytes=1_000, streamed_rows=0, streamed_bytes=0, greatest={}, watermark=None, lag=None, cpu={"0-0": 0.4},
    )  # fmt: skip


class Bench:
    """A primary that steers, and a secondary that gets ready when it is told to."""

    def __init__(self, store: Path, **asked: Any) -> None:
        self.meta = MetaStore(store, sync=False)
        self.agreement = Agreement(self.meta, "host:1:0.00", time.time)
        deployment = Deployment(
            pipeline="f", target="f.py", fragments={"f": FragmentLinks()}, settings={}, hosts=("a", "b"), **asked
        )
        self.agreement.open("f", deployment.first_scheme)
        self.member = Membership("a", 1, self.agreement, Timing(), lambda why: None)
        self.member.sessions = True
        self.member.serve("f")
        self.member.beat()
        self.agreement.ask({"f": [Beat("b", 1, 0, None), Enlist("b", 1, None, None)]})
        self.events: list[HostEvent] = []
        self.loop = ControllerLoop("f", deployment, self.member, self.events.append)
        self.loop.margins = ControllerMargins(report=1.0, calm=30.0)
        self.began, self.now, self.epoch = time.time(), 0.0, 0

    def run(self, seconds: float, rows: int, *, ready: bool = True, beats: bool = True) -> None:
        """Epochs of half a second; the secondary is at once what it is asked to be, unless it is not `ready`."""
        for _ in range(int(seconds * 2)):
            self.epoch += 1
            self.loop.committed(report(self.epoch, rows, self.began + self.now))
            self.now += 0.5
            self.loop.tick(self.now)
            if beats:
                self.agreement.ask({"f": [Beat("b", 1, 0, self.scheme() if ready else None)]})
            self.member.beat()

    def scheme(self) -> Scheme:
        return self.agreement.look(["f"])["f"].seats.scheme


def test_the_wheel_is_turned_as_far_as_the_guarantee_asks(tmp_path: Path) -> None:
    """Within a minute a process can be started: nothing need be kept ready."""
    bench = Bench(tmp_path, recovery=60.0, checkpoint="interval(5s)")
    for what, seconds in (("deploy", 3.0), ("session", 5.0), ("program", 0.2)):
        bench.loop.took(what, seconds)
    bench.run(60.0, rows=1_000)
    notes = bench.agreement.look(["f"])["f"].notes
    assert 8.0 < notes.predicted["passive replication"] < 60.0
    assert bench.scheme() is PASSIVE_REPLICATION
    assert [decision.to for decision in notes.decisions] == ["deployed", "passive replication"]
    assert "passive replication recovers in" in notes.decisions[0].reason
    assert {type(event) for event in bench.events} == {SchemeDecided}
    bench.meta.close()


def test_a_tight_bound_turns_the_wheel_up_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recovery=0.2, checkpoint="interval(5s)")
    bench.run(10.0, rows=1_000)
    assert wheel.rank(bench.scheme()) <= wheel.rank(ACTIVE_STANDBY)
    assert bench.agreement.look(["f"])["f"].notes.decisions
    bench.meta.close()


def test_a_divergence_in_the_middle_of_a_step_turns_the_wheel_back(tmp_path: Path) -> None:
    """The secondary is stopped before it is what the step asks for, and none comes: the wheel is turned to a scheme
    in which one may."""
    bench = Bench(tmp_path, recovery=0.2, checkpoint="interval(5s)")
    while bench.scheme() is not ACTIVE_STANDBY:
        bench.run(0.5, rows=1_000, ready=bench.scheme() is not HOT_STANDBY)
        bench.run(0.5, rows=1_000, ready=bench.scheme() is not ACTIVE_STANDBY)
    assert bench.loop.controller is not None
    assert bench.loop.controller.stepping is ACTIVE_STANDBY
    bench.agreement.note("f", StoredNotes(diverged=Divergence("b", 3, "rows")))
    bench.run(5.0, rows=1_000, ready=False)
    assert not bench.scheme().processes
    assert "b differed in epoch 3" in bench.loop.decisions[-1].reason
    bench.meta.close()


@pytest.mark.parametrize("by_hand", [(COLD_STANDBY,), (COLD_STANDBY, DEPLOYED)])
def test_a_step_that_is_turned_by_hand_is_given_up(tmp_path: Path, by_hand: tuple[Scheme, ...]) -> None:
    """Also where that is the scheme it came from. Then the controller goes on from there."""
    bench = Bench(tmp_path, recovery=0.2, checkpoint="interval(5s)")
    while bench.scheme() is not HOT_STANDBY:
        bench.run(0.5, rows=1_000, ready=False)
    for scheme in by_hand:
        turn(bench.agreement, "f", scheme)
    bench.member.beat()
    bench.run(5.0, rows=1_000)
    assert bench.loop.controller is not None
    assert bench.scheme() is bench.loop.controller.target
    assert wheel.rank(bench.scheme()) <= wheel.rank(HOT_STANDBY)
    bench.meta.close()


def test_a_step_that_the_store_did_not_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, recovery=0.2, checkpoint="interval(5s)")
    asked, away = bench.agreement.ask, True

    def ask(requests: Mapping[str, Sequence[SeatsRequest]]) -> dict[str, Agreed]:
        if away and any(isinstance(request, Turn) for request in requests["f"]):
            raise OSError("away")
        return asked(requests)

    monkeypatch.setattr(bench.agreement, "ask", ask)
    bench.run(5.0, rows=1_000)
    assert bench.scheme() is COLD_STANDBY
    away = False
    bench.run(5.0, rows=1_000)
    assert wheel.rank(bench.scheme()) <= wheel.rank(ACTIVE_STANDBY)
    bench.meta.close()


def test_it_is_said_when_there_is_no_secondary(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recovery=2.0, scheme=COLD_STANDBY)
    bench.run(10.0, rows=1_000)
    assert not bench.loop.decisions
    second = bench.agreement.look(["f"])["f"].seats.secondary
    first = bench.agreement.look(["f"])["f"].seats.primary
    assert second is not None
    assert first is not None
    bench.agreement.ask({"f": [StopReplica(first.token, second, 1)]})  # one way to lose the seat
    bench.run(40.0, rows=1_000)
    [line] = bench.loop.decisions
    assert "no secondary for 30 s" in line.reason
    bench.agreement.ask({"f": [Beat("c", 1, 0, None), Enlist("c", 1, None, None)]})
    bench.run(2.0, rows=1_000)
    assert bench.loop.decisions[-1].reason == "there is a secondary again"
    bench.meta.close()


def test_a_host_that_is_silent_for_long_is_lost_until_it_beats_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recovery=2.0, checkpoint="interval(5s)")
    bench.run(10.0, rows=1_000)
    kept = bench.scheme()
    bench.run(110.0, rows=1_000, beats=False)
    assert bench.loop.controller is not None
    assert bench.loop.controller.hosts == ("a", "b")
    bench.run(20.0, rows=1_000, beats=False)
    notes = bench.agreement.look(["f"])["f"].notes
    assert notes.hosts == ("a",)
    assert list(notes.predicted) == ["passive replication"]
    assert "there is 1 host, and a secondary needs a second one" in notes.decisions[-1].reason
    assert bench.scheme() is kept, "for whoever joins"
    bench.run(5.0, rows=1_000)
    notes = bench.agreement.look(["f"])["f"].notes
    assert notes.hosts == ("a", "b")
    assert len(notes.predicted) == len(wheel.SCHEMES)
    bench.meta.close()


def test_a_host_that_passive_replication_does_not_need_is_not_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recovery=60.0, scheme=PASSIVE_REPLICATION)
    bench.run(150.0, rows=1_000, beats=False)
    assert bench.agreement.look(["f"])["f"].notes.hosts == ("a", "b")
    bench.meta.close()


def test_a_scheme_that_the_user_names_stays(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recovery=2.0, scheme=ACTIVE_STANDBY)
    bench.run(20.0, rows=1_000)
    assert bench.scheme() is ACTIVE_STANDBY
    assert bench.agreement.look(["f"])["f"].notes.predicted
    bench.meta.close()


def test_the_next_primary_goes_on_with_what_was_learnt(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recovery=2.0, checkpoint="interval(5s)")
    bench.run(5.0, rows=1_000)
    bench.loop.took_over(COLD_STANDBY, 1.5, 3, bench.now)
    bench.run(5.0, rows=1_000)
    found = bench.agreement.look(["f"])["f"].notes
    [recovery] = found.recoveries
    assert (recovery.scheme, recovery.seconds, recovery.replayed) == ("passive standby cold", 1.5, 3)
    assert recovery.predicted is not None
    assert recovery.predicted > 0
    again = ControllerLoop("f", bench.loop.deployment, bench.member, lambda event: None)
    again.tick(0.0)
    assert again.recoveries == found.recoveries
    assert again.controller is not None
    assert again.controller.calibration.factors == pytest.approx(bench.loop.controller.calibration.factors)  # type: ignore[union-attr]
    bench.meta.close()
