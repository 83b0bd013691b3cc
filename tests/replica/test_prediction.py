"""Predicted recovery times and costs: their order, what they depend on, and how they learn."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.prediction import Prices, RecoveryCalibration, costs, recovery_cost, recovery_seconds
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from strategies import examples

SEEN = FragmentMetrics(
    state_bytes=2e8,
    rows_per_second=1e5,
    replay_rows_per_second=2e6,
    load_bytes_per_second=2e8,
    utilisation=0.2,
    output_bytes_per_second=1e5,
)

measured = st.builds(
    FragmentMetrics,
    state_bytes=st.floats(0, 1e11),
    rows_per_second=st.floats(0, 1e7),
    replay_rows_per_second=st.floats(1e3, 1e8),
    load_bytes_per_second=st.floats(1e6, 1e10),
    utilisation=st.floats(0, 16),
    sync_seconds=st.floats(0.1, 10),
    checkpoint_seconds=st.floats(10, 100),
)
factors = st.dictionaries(st.sampled_from(list(wheel.SCHEMES)), st.floats(0.1, 10))


@examples(100)
@given(measured, factors, st.booleans(), st.floats(0, 5))
def test_the_order_of_recovery_times_is_the_papers(
    seen: FragmentMetrics, learnt: dict[Scheme, float], precise: bool, times: float
) -> None:
    lines = RecoveryCalibration(learnt).seconds(seen, precise=precise)
    for fast, slow in itertools.pairwise(wheel.SCHEMES):
        assert lines[fast].at(times) <= lines[slow].at(times)


def test_the_gap_has_what_passes_anyhow_and_noticing_the_failure_unless_both_put_out() -> None:
    for scheme in wheel.SCHEMES:
        slower = replace(SEEN, detection_seconds=SEEN.detection_seconds + 3)
        later = recovery_seconds(scheme, slower) - recovery_seconds(scheme, SEEN)
        assert later == pytest.approx(0 if scheme is ACTIVE_REPLICATION else 3)
        assert recovery_seconds(scheme, SEEN) > SEEN.rhythm_seconds


def test_passive_replication_takes_what_its_steps_take() -> None:
    replay = SEEN.rows_per_second * (SEEN.checkpoint_seconds + SEEN.epoch_seconds)
    expected = (
        SEEN.rhythm_seconds
        + SEEN.detection_seconds
        + SEEN.deploy_seconds
        + SEEN.session_seconds
        + SEEN.program_seconds
        + 2 * SEEN.connect_seconds
        + SEEN.state_bytes / SEEN.load_bytes_per_second
        + replay * SEEN.row_bytes / SEEN.load_bytes_per_second
        + replay / SEEN.replay_rows_per_second
        + SEEN.commit_seconds
    )
    assert recovery_seconds(PASSIVE_REPLICATION, SEEN) == pytest.approx(expected)


def test_gap_recovery_replays_nothing() -> None:
    busy = replace(SEEN, rows_per_second=1e9)
    for scheme in wheel.SCHEMES:
        assert recovery_seconds(scheme, busy, precise=False) == recovery_seconds(scheme, SEEN, precise=False)


def test_a_faster_scheme_takes_more_cpu_and_memory() -> None:
    made = [recovery_cost(scheme, SEEN, Prices()) for scheme in wheel.SCHEMES]
    for fast, slow in itertools.pairwise(made):
        assert fast.cpus >= slow.cpus
    assert made[-1].cpus == made[-1].memory == made[-1].network == 0
    assert made[0].cpus == pytest.approx(SEEN.utilisation + 0.01)
    assert made[0].network > made[1].network


@examples(50)
@given(measured, st.floats(0, 10))
def test_costs_grow_in_proportion(seen: FragmentMetrics, times: float) -> None:
    grown = replace(
        seen,
        state_bytes=times * seen.state_bytes,
        rows_per_second=times * seen.rows_per_second,
        utilisation=times * seen.utilisation,
    )
    for scheme, line in costs(seen, Prices()).items():
        assert line.at(times) == pytest.approx(recovery_cost(scheme, grown, Prices()).money)


def test_predictions_follow_what_was_observed() -> None:
    learnt = RecoveryCalibration()
    for _ in range(20):
        learnt = learnt.observed(DEPLOYED, 2.0, 3.0)
    assert learnt.factors[DEPLOYED] == pytest.approx(1.5)
    plain = recovery_seconds(DEPLOYED, SEEN)
    assert learnt.seconds(SEEN)[DEPLOYED].at(1.0) == pytest.approx(1.5 * plain)


@examples(20)
@given(factors, st.floats(0, 10))
def test_what_was_learnt_can_be_stored(learnt: dict[Scheme, float], variance: float) -> None:
    known = RecoveryCalibration(learnt, dict.fromkeys(learnt, variance))
    kept = json.loads(json.dumps(known.to_json()))
    assert RecoveryCalibration.from_json(kept) == known
    assert RecoveryCalibration.from_json({**kept, "another scheme": 2.0}) == known


def test_one_odd_recovery_is_smoothed() -> None:
    learnt = RecoveryCalibration({DEPLOYED: 1.0}).observed(DEPLOYED, 1.0, 100.0)
    assert learnt.factors[DEPLOYED] == pytest.approx(1 + 0.3 * 9)


def test_a_first_recovery_is_believed_at_once_if_it_was_too_slow_and_by_half_if_it_was_fast() -> None:
    slow, fast = (RecoveryCalibration().observed(DEPLOYED, 1.0, took).factors for took in (1.6, 0.6))
    assert slow[DEPLOYED] == pytest.approx(1.6)
    assert fast[DEPLOYED] == pytest.approx(0.8)


def test_one_fast_recovery_leaves_the_cautious_prediction_as_it_was() -> None:
    learnt = RecoveryCalibration().observed(DEPLOYED, 1.0, 0.9)
    plain = RecoveryCalibration().seconds(SEEN)[DEPLOYED].at(1.0)
    assert learnt.seconds(SEEN)[DEPLOYED].at(1.0) == pytest.approx(0.95 * plain)
    assert learnt.seconds(SEEN, deviations=2.0)[DEPLOYED].at(1.0) == pytest.approx(plain)
    for _ in range(20):
        learnt = learnt.observed(DEPLOYED, 1.0, 0.9)
    assert learnt.seconds(SEEN, deviations=2.0)[DEPLOYED].at(1.0) == pytest.approx(0.9 * plain, rel=0.01)


def test_the_parts_of_a_gap_may_all_be_longer_at_once() -> None:
    seen = replace(SEEN, spreads={"detection_seconds": 0.2, "rhythm_seconds": 0.1, "connect_seconds": 0.01})
    usual, cautious = (RecoveryCalibration().seconds(seen, deviations=times) for times in (0.0, 2.0))
    assert cautious[DEPLOYED].at(1.0) - usual[DEPLOYED].at(1.0) == pytest.approx(2 * (0.2 + 0.1 + 2 * 0.01))
    assert cautious[ACTIVE_REPLICATION].at(1.0) - usual[ACTIVE_REPLICATION].at(1.0) == pytest.approx(2 * 0.1)


def test_factors_of_earlier_versions_are_read() -> None:
    assert RecoveryCalibration.from_json({DEPLOYED.name: 1.5}) == RecoveryCalibration({DEPLOYED: 1.5})


def test_small_epochs_are_replayed_one_by_one() -> None:
    seen = replace(SEEN, epochs_per_second=4.0, overhead_seconds=0.1, epoch_seconds=0.2)
    rows_alone = recovery_seconds(HOT_STANDBY, replace(SEEN, epoch_seconds=0.2))
    worst = recovery_seconds(HOT_STANDBY, seen)
    assert worst == pytest.approx(rows_alone + 4.0 * (SEEN.sync_seconds + 0.2) * 0.1)
    per_epoch = 0.1 + SEEN.rows_per_second / 4.0 / SEEN.replay_rows_per_second
    two, three = (recovery_seconds(HOT_STANDBY, seen, epochs=number) for number in (2, 3))
    assert three - two == pytest.approx(per_epoch)
    assert two < worst
    assert recovery_seconds(ACTIVE_STANDBY, seen, epochs=9) == recovery_seconds(ACTIVE_STANDBY, seen)


def test_a_queue_saves_what_sources_take() -> None:
    seen = replace(SEEN, epochs_per_second=4.0, overhead_seconds=0.1, epoch_seconds=0.2)
    slow = replace(seen, fetch_seconds=0.03)
    hot, cold = HOT_STANDBY, COLD_STANDBY
    assert recovery_seconds(hot, slow, epochs=3) == pytest.approx(recovery_seconds(hot, seen, epochs=3) - 3 * 0.03)
    assert recovery_seconds(cold, slow, epochs=3) == recovery_seconds(cold, seen, epochs=3)
    assert recovery_seconds(hot, replace(seen, fetch_seconds=9.0), epochs=3) > 0


def test_a_replay_begins_slowly_once() -> None:
    seen = replace(SEEN, epochs_per_second=4.0, overhead_seconds=0.1, epoch_seconds=0.2)
    cold = replace(seen, resume_seconds=0.4, resume_standing_seconds=0.1)
    for scheme in wheel.SCHEMES:
        rank = wheel.rank(scheme) - wheel.rank(HOT_STANDBY)
        for epochs in (1, 5):
            more = recovery_seconds(scheme, cold, epochs=epochs) - recovery_seconds(scheme, seen, epochs=epochs)
            assert more == pytest.approx(0.0 if rank < 0 else 0.1 if rank == 0 else 0.4), "a hot standby has its tasks"


def test_the_load_may_grow_and_the_number_of_epochs_stays() -> None:
    seen = replace(SEEN, epochs_per_second=4.0, overhead_seconds=0.1)
    line = RecoveryCalibration().seconds(seen)[HOT_STANDBY]
    grown = replace(seen, rows_per_second=3 * seen.rows_per_second, state_bytes=3 * seen.state_bytes)
    assert line.at(3.0) == pytest.approx(recovery_seconds(HOT_STANDBY, grown))
