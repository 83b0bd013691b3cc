"""Which epochs are retained: all of the last ones, and by their time so many that their number stays bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest

from holdfast.durability.retained_epochs import LAST_EPOCHS, RetainedEpochs, RetentionRule


def after(rule: RetentionRule, epochs: int, seconds: float, whole: int = 64) -> tuple[RetainedEpochs, set[int], int]:
    """After so many epochs of so many seconds, each `whole`-th record being whole: what is retained, which epochs the
    store knows, and the most it has known."""
    made, known, most = RetainedEpochs(rule), set[int](), 0
    for epoch in range(1, epochs + 1):
        gone = made.to_forget(epoch, epoch)
        known -= set(gone)
        made.forget(gone)
        known.add(epoch)
        made.add(epoch, epoch * seconds, whole=epoch % whole == 1 or whole == 1)
        for number in known:  # also those that are not retained are read, at a start
            begins = number if whole == 1 else number - (number - 1) % whole
            assert number in made.kept or set(range(begins, number)) <= known, f"{number} goes back to what is gone"
        most = max(most, len(known))
    return made, known, most


def test_a_number_of_epochs_is_just_that() -> None:
    made, known, _ = after(RetentionRule(3), 100, 1.0, whole=1)
    assert not made.kept
    assert known == {97, 98, 99, 100}, "the one before the last three goes with the next commit"


@pytest.mark.parametrize(("seconds", "hours"), [(0.004, 0.005), (0.1, 0.1), (1.0, 1), (30.0, 24)])
def test_a_time_is_retained_in_a_bounded_number_of_epochs(seconds: float, hours: float) -> None:
    epochs = int(1.3 * hours * 3600 / seconds)
    made, _, most = after(RetentionRule(seconds=3600.0 * hours), epochs, seconds, whole=64 if seconds < 0.01 else 1)
    lasted = min(epochs * seconds, 3600.0 * hours)
    assert len(made.kept) < 200
    assert most < 400
    ages = sorted((epochs - epoch) * seconds for epoch in made.kept)
    assert ages[-1] >= 0.9 * lasted - 2 * 64 * seconds
    assert ages[-1] <= 3600.0 * hours + 65 * seconds, "what is too old goes when another one comes"
    gaps = [later - sooner for sooner, later in pairwise(ages)]
    assert max(gaps) <= max(2.1 * 3600.0 * hours / 128, 70 * seconds), "nothing of that time is far away"


def test_what_a_reader_has_found_stays_for_seconds() -> None:
    rule, made = RetentionRule(seconds=3600.0), RetainedEpochs(RetentionRule(seconds=3600.0))
    found: dict[int, float] = {}
    for epoch in range(1, 6_000):
        now = epoch * 0.004
        made.add(epoch, now, whole=epoch % 64 == 1)
        for kept in set(found) - set(made.kept):
            assert now - found.pop(kept) > 9.0, f"epoch {kept} went too soon, of {rule}"
        for kept in set(made.kept) - set(found):
            found[kept] = now


def test_epochs_are_retained_after_the_clock_was_set_back() -> None:
    made = RetainedEpochs(RetentionRule(seconds=60.0))
    for epoch in range(1, 201):
        made.add(epoch, 10_000.0 + epoch if epoch <= 100 else 5_000.0 + epoch, whole=True)
    assert {150, 160, 170, 180} <= set(made.kept)


def test_records_that_others_go_back_to_stay_known() -> None:
    _, known, _ = after(RetentionRule(), 1_000, 0.004)
    first = 1_000 - LAST_EPOCHS
    whole = max(epoch for epoch in known if epoch % 64 == 1 and epoch <= first)
    assert set(range(whole, 1_001)) <= known


def test_epochs_that_may_be_replayed_stay_known() -> None:
    made = RetainedEpochs(RetentionRule(2))
    for epoch in range(1, 200):
        made.add(epoch, float(epoch), whole=epoch % 10 == 0)
    assert max(made.to_forget(200, needed=105)) == 99
    assert max(made.to_forget(200, needed=110)) == 109
    assert max(made.to_forget(200, needed=200)) == 189
