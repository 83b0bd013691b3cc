"""What a host's measurements become: predictions for the epochs there are, and what is learnt from takeovers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.recovery import RecoveryReport
from holdfast.epoch.report import EpochReport
from holdfast.plan.cuts import FragmentLinks
from holdfast.replica.controller_loop import ControllerLoop
from holdfast.replica.deployment import Deployment
from holdfast.replica.fragment_notes import FragmentNotes, StoredNotes
from holdfast.replica.keeper import Keeper, Timing
from holdfast.replica.membership import FragmentPlace, Membership
from holdfast.replica.prediction import recovery_spread
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.seat_store import Agreed
from holdfast.replica.seats import Seats

ROWS, EVERY, TOOK = 1_000, 0.5, 0.2


@dataclass
class Alone:
    """A host's place, without others and without a store."""

    notes: StoredNotes
    leads: bool = False

    def serve(self, fragment: str) -> FragmentPlace:
        agreed = Agreed(Seats(scheme=COLD_STANDBY), FragmentNotes(self.notes.encode()), ended=False)
        keeper = Keeper("a", 1, Timing())
        keeper.is_primary = self.leads
        return FragmentPlace(keeper, agreed)


def loop(notes: StoredNotes | None = None, checkpoint: str = "interval(4s)", **more: Any) -> ControllerLoop:
    deployment = Deployment(
        pipeline="p", target="p.py", fragments={"p": FragmentLinks()}, settings={}, checkpoint=checkpoint,
        hosts=("a", "b"), recovery=2.0, **more,
    )  # fmt: skip
    return ControllerLoop("p", deployment, cast("Membership", Alone(notes or StoredNotes())), lambda event: None)


def epoch(number: int) -> EpochReport:
    at = 100 + number * EVERY
    return EpochReport(
        fragment="p", epoch=number, rows=ROWS, entered=ROWS, started=at - TOOK, committed=at, seconds=TOOK - 0.05,
        output_rows=0, late_rows=0, bad_rows=0, state_rows=1, state_bytes=1_000_000, written_bytes=1_000,
        streamed_rows=0, streamed_bytes=0, greatest={}, watermark=None, lag=None,
    )  # fmt: skip


def running(**more: Any) -> ControllerLoop:
    made = loop(**more)
    for number in range(1, 60):
        made.committed(epoch(number))
    return made


def recovery(phases: tuple[float, float, float, float], size: int = 0, loading: float = 0.0) -> RecoveryReport:
    names = ("progress", "upstream request", "data", "replay")
    return RecoveryReport("p", 9, dict(zip(names, phases, strict=True)), 2, size, 4, {}, loading=loading)


def test_a_replay_is_predicted_to_take_what_its_epochs_took() -> None:
    made = running()
    seen = made.tracker.measured()
    assert seen is not None
    assert seen.epochs_per_second == pytest.approx(2.0, rel=0.05)
    assert seen.epoch_seconds == pytest.approx(TOOK)
    replay = seen.overhead_seconds + ROWS / seen.replay_rows_per_second
    assert replay == pytest.approx(TOOK)


def test_one_large_epoch_does_not_make_the_replay_of_small_ones_look_fast() -> None:
    made = loop()
    made.committed(replace(epoch(1), rows=1_000 * ROWS))
    for number in range(2, 60):
        made.committed(epoch(number))
    seen = made.tracker.measured()
    assert seen is not None
    assert seen.overhead_seconds + ROWS / seen.replay_rows_per_second == pytest.approx(TOOK, rel=0.01)


def test_the_first_checkpoint_is_taken_to_be_as_old_as_its_policy_says() -> None:
    made = running()
    made.checkpoint(CheckpointReport("p", 9, 1_000_000, 0, 0.5))
    seen = made.tracker.measured()
    assert seen is not None
    assert seen.checkpoint_seconds == pytest.approx(4.5)
    assert seen.sync_seconds == pytest.approx(4.5)
    assert seen.load_bytes_per_second == pytest.approx(2e6)


def test_with_delta_nothing_is_learnt_of_the_speed_of_the_store() -> None:
    seen = running(checkpoint="delta").tracker.measured()
    assert seen is not None
    assert seen.load_bytes_per_second == 2e8
    assert seen.checkpoint_seconds == pytest.approx(TOOK)


def test_a_recovery_tells_the_speed_of_reading_and_what_is_around_it() -> None:
    made = running()
    made.recovered(recovery((0.1, 0.1, 0.6, 3.0), size=4_000_000, loading=0.4), leads=True)
    seen = made.tracker.measured()
    assert seen is not None
    assert seen.load_bytes_per_second == pytest.approx(1e7)
    assert seen.connect_seconds == pytest.approx(0.2)
    assert seen.overhead_seconds + ROWS / seen.replay_rows_per_second == pytest.approx(TOOK), "epochs are as they are"
    made.recovered(recovery((9.0, 9.0, 9.0, 3.0)), leads=False)
    assert made.tracker.measured() == seen, "a secondary that joins takes over no house"


def test_the_first_start_tells_how_long_it_takes_to_connect() -> None:
    made = loop()
    made.took("program", 0.3)
    made.began(0.9)
    assert made.tracker.took["connect"] == pytest.approx(0.3)


def test_a_takeover_is_judged_by_what_was_replayed_and_known_before() -> None:
    before = running()
    before.took("session", 5.0)
    after = loop(StoredNotes(measuring=before.tracker))
    after.took("session", 50.0)
    after.took_over(COLD_STANDBY, 1.0, replayed=2, now=0.0)
    [told] = after.recoveries
    seen = before.tracker.measured()
    assert seen is not None
    around = seen.rhythm_seconds + seen.detection_seconds + 2 * seen.connect_seconds + seen.commit_seconds
    assert told.predicted == pytest.approx(around + 2 * TOOK, rel=0.02)
    assert told.at_worst > told.predicted
    assert after.controller is not None
    factor = after.controller.calibration.factors[COLD_STANDBY]
    assert factor == pytest.approx((1 + 1.0 / told.predicted) / 2), "that it was faster is believed by half"
    assert after.controller.metrics == seen, "what this process took itself was not known"
    assert after.tracker.took["session"] == 50.0


def test_what_the_first_takeover_takes_longer_is_not_also_a_factor_of_all_the_rest() -> None:
    before = running()
    after = loop(StoredNotes(measuring=before.tracker))
    after.recovered(recovery((0.0, 0.0, 0.0, 2 * TOOK + 6.0)), leads=True)
    seen = before.tracker.measured()
    assert seen is not None
    gap = seen.rhythm_seconds + seen.detection_seconds + seen.commit_seconds + 2 * TOOK + 6.0
    after.took_over(COLD_STANDBY, gap, replayed=2, now=0.0)
    [told] = after.recoveries
    assert told.predicted is not None
    assert told.predicted < gap - 5.0, "nobody knew it before"
    assert after.controller is not None
    assert after.controller.calibration.factors[COLD_STANDBY] == pytest.approx(1.0, rel=0.05)
    assert after.controller.metrics is not None
    assert after.controller.metrics.resume_seconds == pytest.approx(6.0, rel=0.05)


def test_the_first_epoch_of_a_process_tells_what_a_takeover_takes_longer() -> None:
    made = loop()
    made.committed(replace(epoch(1), started=epoch(1).started - 4.0))
    for number in range(2, 60):
        made.committed(epoch(number))
    seen = made.tracker.measured()
    assert seen is not None
    assert seen.resume_seconds == pytest.approx(4.0, rel=0.1)
    made.took("first_epoch", 5.0)  # of another process
    told = made.tracker.measured()
    assert told is not None
    assert told.spreads["resume_seconds"] > 0
    assert recovery_spread(COLD_STANDBY, told) > told.spreads["resume_seconds"] / 2
    made.took("resume", 3.0)
    told = made.tracker.measured()
    assert told is not None
    assert told.resume_seconds == 3.0, "a takeover knows better"


def test_how_long_it_must_be_calm_comes_with_the_deployment() -> None:
    assert loop(calm=30.0).margins.calm == 30.0
    assert Deployment.decode(loop(calm=30.0).deployment.encode()).calm == 30.0


@pytest.mark.parametrize(
    ("scheme", "fetched", "stage"), [(COLD_STANDBY, 0.0, "resume"), (HOT_STANDBY, 0.1, "resume_standing")]
)
def test_what_a_replay_takes_longer_than_its_epochs_counts_once(scheme: Scheme, fetched: float, stage: str) -> None:
    """And by itself where tasks stood already: without them it takes longer."""
    before = loop()
    for number in range(1, 60):
        before.committed(replace(epoch(number), fetching=0.1))
    after = loop(StoredNotes(measuring=before.tracker))
    took = 4 * (TOOK - fetched) + 0.5
    after.recovered(recovery((0.0, 0.0, 0.0, took)), leads=True)
    after.took_over(scheme, took, replayed=4, now=0.0)
    assert after.tracker.took[stage] == pytest.approx(0.5, rel=0.05)
    assert len({"resume", "resume_standing"} & after.tracker.took.keys()) == 1
    seen = after.tracker.measured()
    assert seen is not None
    assert getattr(seen, f"{stage}_seconds") == after.tracker.took[stage]


def test_a_takeover_without_a_replay_tells_nothing_of_replays() -> None:
    after = loop(StoredNotes(measuring=running().tracker))
    after.recovered(recovery((0.0, 0.0, 0.0, 9.0)), leads=False)
    after.took_over(ACTIVE_STANDBY, 0.1, replayed=0, now=0.0)
    assert not {"resume", "resume_standing"} & after.tracker.took.keys()


def test_a_new_primary_knows_the_rhythm_of_the_one_before_at_once() -> None:
    """A takeover may be over before its host has looked around once more."""
    seen = (before := running()).tracker.measured()
    assert seen is not None
    after = loop(StoredNotes(measuring=before.tracker))
    assert after.rhythm == 0.0, "it is not the primary"
    cast("Alone", after.member).leads = True
    assert after.rhythm == pytest.approx(seen.rhythm_seconds)
