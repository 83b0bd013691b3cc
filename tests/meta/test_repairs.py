"""Repairs in the meta store: fenced, kept with their reasons, and never at the cost of an epoch that counts."""

from __future__ import annotations

import pytest

from holdfast.errors import LeaseLostError
from holdfast.meta import MetaStore, Repairs
from stored_texts import carry_out, commit_epoch, plan_epoch, plan_text, text

PIPELINE = "p"


@pytest.fixture
def store(where):
    opened = MetaStore(where, sync=False)
    yield opened
    opened.close()


@pytest.fixture
def lease(store):
    return store.acquire(PIPELINE, "me", now=0.0, seconds=30.0)


def test_an_epoch_that_was_forgotten_is_planned_again_and_only_the_new_plan_is_committed(store, lease):
    plan_epoch(store, lease, 1, plan_text({"slices": "bad"}), 1.0)
    plan_epoch(store, lease, 2, plan_text({"slices": "next"}), 1.0)
    number = Repairs(store).ask(PIPELINE, text({"do": "replan", "epochs": [1, 2]}), "a bad line", 2.0)
    carry_out(store, lease, [1, 2], {}, {number: text({"epochs": [1, 2]})}, 3.0)
    assert store.planned(PIPELINE) == []
    assert plan_epoch(store, lease, 1, plan_text({"slices": "good"}), 4.0) == text({"slices": "good", "generation": 1})
    with pytest.raises(LeaseLostError, match="planned again"):
        commit_epoch(store, lease, 1, text({"ran": "bad"}), 5.0)
    assert [plan.epoch for plan in store.planned(PIPELINE)] == [1]
    assert commit_epoch(store, lease, 1, text({"ran": "good", "generation": 1}), 6.0)


def test_a_secondary_that_ran_the_old_plan_is_fenced_off_too(store, lease):
    plan_epoch(store, lease, 1, plan_text({}), 1.0)
    number = Repairs(store).ask(PIPELINE, text({"do": "skip", "epoch": 1}), "", 2.0)
    carry_out(store, lease, [1], {1: plan_text({"slices": {}})}, {number: text({})}, 3.0)
    [planned] = store.planned(PIPELINE)
    assert planned.plan == text({"slices": {}, "generation": 1})
    with pytest.raises(LeaseLostError, match="planned again"):
        commit_epoch(store, lease, 1, text({}), 4.0)
    assert commit_epoch(store, lease, 1, text({"generation": 1}), 5.0)


def test_who_has_lost_the_lease_repairs_nothing(store, lease):
    plan_epoch(store, lease, 1, plan_text({}), 1.0)
    number = Repairs(store).ask(PIPELINE, text({"do": "replan", "epochs": [1]}), "", 2.0)
    store.acquire(PIPELINE, "another", now=100.0, seconds=30.0)
    with pytest.raises(LeaseLostError):
        carry_out(store, lease, [1], {}, {number: text({})}, 101.0)
    assert [plan.epoch for plan in store.planned(PIPELINE)] == [1]
    assert [repair.number for repair in Repairs(store).waiting(PIPELINE)] == [number]


def test_an_epoch_that_was_committed_is_never_forgotten_and_then_nothing_else_is(store, lease):
    plan_epoch(store, lease, 1, plan_text({}), 1.0)
    plan_epoch(store, lease, 2, plan_text({}), 1.0)
    commit_epoch(store, lease, 1, text({}), 2.0)
    number = Repairs(store).ask(PIPELINE, text({"do": "replan", "epochs": [1, 2]}), "", 3.0)
    with pytest.raises(LeaseLostError, match="has committed"):
        carry_out(store, lease, [1, 2], {}, {number: text({})}, 4.0)
    assert store.last_epoch(PIPELINE) == 1
    assert [plan.epoch for plan in store.planned(PIPELINE)] == [2]
    assert Repairs(store).waiting(PIPELINE)


def test_a_repair_stays_with_its_reason_and_what_came_of_it(store, lease):
    repairs = Repairs(store)
    number = repairs.ask(PIPELINE, text({"do": "skip", "file": "b"}), "test data", 1.0)
    [asked] = repairs.known(PIPELINE)
    assert (asked.reason, asked.outcome, asked.done_at) == ("test data", None, None)
    assert repairs.known("another") == []
    carry_out(store, lease, [], {}, {number: text({"from": 7})}, 2.0)
    [done] = repairs.known(PIPELINE)
    assert (done.what, done.outcome, done.done_at) == (text({"do": "skip", "file": "b"}), text({"from": 7}), 2.0)
    assert repairs.waiting(PIPELINE) == []


def test_notices_are_what_was_said_last(store, lease):
    repairs = Repairs(store)
    assert repairs.noticed(PIPELINE) == []
    repairs.notice(lease, ["no directory", "odd"], 1.0)
    assert repairs.noticed(PIPELINE) == ["no directory", "odd"]
    repairs.notice(lease, [], 2.0)
    assert repairs.noticed(PIPELINE) == []
