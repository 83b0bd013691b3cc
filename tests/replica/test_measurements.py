"""What a host sees becomes what is predicted from: the right figures, whatever comes, and never nonsense."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.measurements import (
    CheckpointSaved,
    EpochMeasured,
    Idled,
    MetricsTracker,
    Observation,
    Resident,
    Stage,
    StateLoaded,
    Took,
)
from holdfast.replica.prediction import Prices, RecoveryCalibration, costs
from holdfast.replica.schemes import wheel
from holdfast.stored_json import JsonForm
from strategies import examples

EPOCH = EpochMeasured(
    seconds=0.5,
    busy_seconds=0.1,
    cpu_seconds=0.2,
    rows=5_000,
    input_bytes=250_000,
    output_bytes=1_000,
    state_bytes=1e7,
    changed_bytes=2e4,
)
STAGES: tuple[Stage, ...] = (
    "deploy", "session", "program", "connect", "commit", "detection", "sync", "resume", "resume_standing",
)  # fmt: skip

anything = st.floats() | st.floats(0, 1e9)
epochs = st.builds(EpochMeasured, **dict.fromkeys(EpochMeasured.__dataclass_fields__, anything))
observations: st.SearchStrategy[Observation] = st.one_of(
    epochs,
    st.builds(Idled, anything),
    st.builds(CheckpointSaved, bytes=anything, seconds=anything, age=anything),
    st.builds(StateLoaded, anything, anything),
    st.builds(Took, st.sampled_from(STAGES), anything),
    st.builds(Resident, anything),
)


def _after(*seen: Observation, begun: MetricsTracker | None = None) -> MetricsTracker:
    account = begun or MetricsTracker()
    for observation in seen:
        account = account.after(observation)
    return account


def _read(account: dict[str, object]) -> MetricsTracker:
    return JsonForm(MetricsTracker, "an account").decode(json.dumps(account))


def _measured(*seen: Observation) -> FragmentMetrics:
    measured = _after(*seen).measured()
    assert measured is not None
    return measured


def test_nothing_is_known_before_the_first_epoch() -> None:
    assert MetricsTracker().measured() is None
    assert _after(Took("session", 3.0), Resident(5e8), Idled(4.0)).measured() is None


def test_a_steady_load_is_measured_as_it_is() -> None:
    seen = _measured(*[EPOCH] * 50)
    assert seen.rows_per_second == pytest.approx(10_000)
    assert seen.utilisation == pytest.approx(0.4)
    assert seen.row_bytes == pytest.approx(50)
    assert seen.output_bytes_per_second == pytest.approx(2_000)
    assert seen.changed_bytes_per_second == pytest.approx(4e4)
    assert seen.epoch_seconds == pytest.approx(0.1)
    assert seen.state_bytes == 1e7
    assert seen.replay_rows_per_second == pytest.approx(50_000)


def test_epochs_of_any_length_count_by_the_time_they_took() -> None:
    long = replace(EPOCH, seconds=2.0, rows=20_000)
    assert _measured(*[EPOCH, long] * 20).rows_per_second == pytest.approx(10_000)


def test_another_load_is_seen_within_seconds_and_silence_too() -> None:
    busy = [replace(EPOCH, rows=50_000)] * 60
    assert _measured(*[EPOCH] * 100, *busy).rows_per_second == pytest.approx(100_000, rel=0.06)
    assert _measured(*[EPOCH] * 100, Idled(60.0)).rows_per_second < 100


def test_starts_checkpoints_and_loads_are_taken_over() -> None:
    seen = _measured(
        EPOCH,
        *(Took(stage, 0.25 * (1 + number)) for number, stage in enumerate(STAGES)),
        CheckpointSaved(bytes=4e6, seconds=0.5, age=9.5),
        Resident(7e8),
    )
    assert [getattr(seen, f"{stage}_seconds") for stage in STAGES] == [
        0.25 * turn for turn in range(1, len(STAGES) + 1)
    ]
    assert seen.checkpoint_seconds == 10.0
    assert seen.load_bytes_per_second == 8e6  # as fast as it was written, until it was read
    assert seen.idle_bytes == 7e8
    assert _measured(EPOCH, StateLoaded(1e8, 0.5)).load_bytes_per_second == 2e8


def test_what_sources_take_is_told_by_the_epoch() -> None:
    assert _measured(*[replace(EPOCH, fetch_seconds=0.02)] * 9).fetch_seconds == pytest.approx(0.02)
    longer = replace(EPOCH, fetch_seconds=9 * EPOCH.busy_seconds)
    assert _measured(longer).fetch_seconds == EPOCH.busy_seconds, "tasks of two epochs may wait at a time"


def test_what_was_not_seen_is_as_assumed() -> None:
    seen = _measured(EPOCH)
    assert (seen.session_seconds, seen.checkpoint_seconds) == (4.0, 10.0)


def test_what_a_replay_took_longer_is_no_lower_speed_of_its_rows() -> None:
    before, after = _measured(EPOCH), _measured(EPOCH, Took("resume", 30.0))
    assert after == replace(before, resume_seconds=30.0)


def test_an_account_of_before_with_the_speed_of_a_replay_is_gone_on_with() -> None:
    account = _after(EPOCH)
    assert _read({**asdict(account), "replayed": {"amount": 1.0, "seconds": 9.0}}) == account


def test_small_epochs_do_not_make_a_replay_look_slow() -> None:
    large = replace(EPOCH, rows=200_000, busy_seconds=0.2)
    small = replace(EPOCH, rows=10, busy_seconds=0.05)
    assert _measured(large, *[small] * 20).replay_rows_per_second > 9e5


def test_one_odd_occasion_is_smoothed() -> None:
    seen = _measured(EPOCH, Took("session", 4.0), Took("session", 14.0))
    assert seen.session_seconds == pytest.approx(7.0)


@examples(150)
@given(st.lists(observations, max_size=15))
def test_nothing_makes_it_negative_or_no_number(seen: list[Observation]) -> None:
    measured = _after(*seen).measured() or _measured(EPOCH, *seen)
    told = measured.to_json()
    figures = [*told.pop("spreads").values(), *told.values()]
    assert all(figure is not None and math.isfinite(figure) and figure >= 0 for figure in figures)
    assert FragmentMetrics.from_json(measured.to_json()) == measured
    for lines in (RecoveryCalibration().seconds(measured), costs(measured, Prices())):
        assert all(math.isfinite(lines[scheme].at(1.0)) for scheme in wheel.SCHEMES)


@examples(60)
@given(st.lists(observations, max_size=10), st.lists(observations, max_size=5))
def test_it_goes_on_from_json_as_if_nothing_had_been(before: list[Observation], after: list[Observation]) -> None:
    account = _after(*before)
    again = _read(asdict(account))
    assert again == account
    assert _after(*after, begun=again) == _after(*after, begun=account)


def test_an_account_of_another_version_is_read_as_far_as_it_is_known() -> None:
    account = _after(EPOCH, Took("session", 3.0))
    kept = {**asdict(account), "unheard": 1, "took": {"session": 3.0, "unheard": 2.0}}
    del kept["saved"]
    assert _read(kept).measured() == account.measured()


@examples(80)
@given(
    st.lists(epochs, max_size=5),
    st.sampled_from(
        [
            ("rows", "rows_per_second"),
            ("cpu_seconds", "utilisation"),
            ("output_bytes", "output_bytes_per_second"),
            ("changed_bytes", "changed_bytes_per_second"),
            ("state_bytes", "state_bytes"),
            ("busy_seconds", "epoch_seconds"),
        ]
    ),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
)
def test_more_is_never_measured_as_less(before: list[EpochMeasured], what: tuple[str, str], a: float, b: float) -> None:
    given_as, measured_as = what
    less, more = (_measured(*before, replace(EPOCH, **{given_as: amount})) for amount in sorted((a, b)))
    assert getattr(less, measured_as) <= getattr(more, measured_as)


@examples(40)
@given(st.sampled_from(STAGES), st.lists(st.floats(0, 100), max_size=4), st.floats(0, 100), st.floats(0, 100))
def test_longer_is_never_measured_as_shorter(stage: Stage, before: list[float], a: float, b: float) -> None:
    known = [Took(stage, seconds) for seconds in before]
    less, more = (_measured(EPOCH, *known, Took(stage, seconds)) for seconds in sorted((a, b)))
    assert getattr(less, f"{stage}_seconds") <= getattr(more, f"{stage}_seconds")


def test_how_much_the_parts_of_a_gap_vary() -> None:
    steady = _measured(EPOCH, EPOCH, EPOCH, Took("detection", 1.0), Took("detection", 1.0))
    assert steady.spreads == {"rhythm_seconds": pytest.approx(0.0, abs=1e-6), "detection_seconds": 0.0}
    turns = [at % 2 for at in range(60)]
    shaky = _measured(
        *(replace(EPOCH, seconds=0.2 + 0.4 * turn) for turn in turns),
        *(Took("detection", 0.8 + 0.4 * turn) for turn in turns),
        *(CheckpointSaved(bytes=1e6, seconds=0.0, age=8.0 + 4.0 * turn) for turn in turns),
    )
    assert shaky.spreads["rhythm_seconds"] == pytest.approx(0.2, rel=0.1)
    assert shaky.spreads["detection_seconds"] == pytest.approx(0.2, rel=0.2)
    assert shaky.spreads["checkpoint_seconds"] == pytest.approx(2.0, rel=0.2)
    assert FragmentMetrics.from_json(shaky.to_json()) == shaky


def test_waiting_for_input_is_no_rhythm_that_varies() -> None:
    seen = _measured(*[replace(EPOCH, seconds=1.0 + 30.0 * (at % 2)) for at in range(20)])
    assert seen.spreads["rhythm_seconds"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"state_bytes": -1.0},
        {"utilisation": math.nan},
        {"replay_rows_per_second": 0.0},
        {"rows_per_second": "many"},
        {"row_bytes": None},
        {"epoch_seconds": True},
        {"spreads": {"commit_seconds": -1.0}},
        {"spreads": 3.0},
    ],
)
def test_figures_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    kept = _measured(EPOCH).to_json()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FragmentMetrics.from_json({**kept, **wrong})
    del kept["state_bytes"]
    with pytest.raises(ValueError, match="state_bytes missing"):
        FragmentMetrics.from_json(kept)
