"""What hosts agree on in the meta store: seats and notes change one after the other, whoever asks at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from together import at_once

from holdfast.errors import LeaseLostError
from holdfast.meta import Lease, LeaseHolder, MetaStore, ReplicaMeta, ReplicaRow, SeatsUpdate
from stored_texts import commit_epoch, plan_epoch, plan_text, text

FRAGMENTS = ("p.one", "p.two")
ROUNDS = 25


@pytest.fixture
def hosts(where: Path | str) -> Iterator[list[ReplicaMeta]]:
    stores = [MetaStore(where, sync=False) for _ in range(3)]
    yield [ReplicaMeta(store) for store in stores]
    for store in stores:
        store.close()


def test_the_first_to_open_a_fragment_gives_it_its_seats(hosts: list[ReplicaMeta]) -> None:
    for number in range(ROUNDS):
        name = f"p.{number}"
        texts = [(text({"by": index}), text({"note": index})) for index in range(len(hosts))]
        at_once(*(partial(host.open, name, *both) for host, both in zip(hosts, texts, strict=True)))
        rows = [host.rows([name])[name] for host in hosts]
        assert rows[0] == rows[1] == rows[2]
        assert set(json.loads(rows[0].seats)) == {"by"}


def test_a_pipeline_is_deployed_by_many_at_once_and_the_last_word_counts(hosts: list[ReplicaMeta]) -> None:
    for number in range(ROUNDS):
        at_once(*(partial(host.deploy, f"p{number}", text({"by": index})) for index, host in enumerate(hosts)))
    assert sorted(hosts[0].deployed()) == sorted(f"p{number}" for number in range(ROUNDS))
    hosts[0].deploy("p0", text({"by": "last"}))
    assert hosts[1].deployed()["p0"] == text({"by": "last"})
    hosts[1].withdraw("p0")
    assert "p0" not in hosts[2].deployed()


def test_no_change_of_seats_is_lost_and_no_token_is_given_twice(hosts: list[ReplicaMeta]) -> None:
    """Each change takes the lease of both fragments, named in another order."""
    for fragment in FRAGMENTS:
        hosts[0].open(fragment, text({"count": 0}), "{}")
    tokens: list[tuple[str, int]] = []

    def take(index: int, fragment: str, row: ReplicaRow, held: LeaseHolder | None) -> SeatsUpdate:
        token = (held.token if held is not None else 0) + 1
        tokens.append((fragment, token))
        seats = text({"count": json.loads(row.seats)["count"] + 1})
        return SeatsUpdate(seats, token, None, False, LeaseHolder(token, f"host-{index}", 10.0))

    def changing(index: int) -> None:
        order = FRAGMENTS if index % 2 else FRAGMENTS[::-1]
        for _ in range(ROUNDS):
            hosts[index].change(order, partial(take, index))

    at_once(*(partial(changing, index) for index in range(3)))
    rows = hosts[0].rows(FRAGMENTS)
    assert [json.loads(rows[fragment].seats)["count"] for fragment in FRAGMENTS] == [3 * ROUNDS] * 2
    assert sorted(tokens) == [(fragment, token) for fragment in FRAGMENTS for token in range(1, 3 * ROUNDS + 1)]


def test_notes_of_several_hosts_stand_beside_each_other(hosts: list[ReplicaMeta]) -> None:
    hosts[0].open("p.one", "{}", "{}")

    def noting(index: int) -> None:
        for number in range(ROUNDS):
            hosts[index].note("p.one", text({f"{index}-{number}": number}))

    at_once(*(partial(noting, index) for index in range(3)))
    assert len(json.loads(hosts[0].rows(["p.one"])["p.one"].notes)) == 3 * ROUNDS


def test_a_secondary_commits_as_long_as_its_seat_says_so(hosts: list[ReplicaMeta]) -> None:
    store = hosts[0]._meta
    hosts[0].open("p.one", "{}", "{}")

    def seating(sharing: bool, first: int, fragment: str, row: ReplicaRow, held: LeaseHolder | None) -> SeatsUpdate:
        return SeatsUpdate("{}", first, 7, sharing, LeaseHolder(first, "primary", 10.0))

    hosts[0].change(["p.one"], partial(seating, True, 1))
    primary, secondary = Lease("p.one", "primary", 1), Lease("p.one", "secondary", 7, shared=True)
    assert plan_epoch(store, primary, 1, plan_text({"by": "primary"}), 1.0) == text({"by": "primary"})
    assert plan_epoch(store, secondary, 1, plan_text({"by": "secondary"}), 1.0) == text({"by": "primary"})
    assert commit_epoch(store, secondary, 1, text({}), 2.0)
    assert not commit_epoch(store, primary, 1, text({}), 2.0)
    hosts[1].change(["p.one"], partial(seating, False, 1))
    with pytest.raises(LeaseLostError):
        plan_epoch(store, secondary, 2, plan_text({}), 3.0)
    hosts[1].change(["p.one"], partial(seating, True, 2))
    with pytest.raises(LeaseLostError):
        plan_epoch(store, primary, 2, plan_text({}), 3.0)
    assert plan_epoch(store, secondary, 2, plan_text({"by": "secondary"}), 3.0) == text({"by": "secondary"})


def test_a_secondary_that_wakes_up_late_does_not_plan_what_was_forgotten(hosts: list[ReplicaMeta]) -> None:
    store = hosts[0]._meta
    hosts[0].open("p.one", "{}", "{}")

    def seating(fragment: str, row: ReplicaRow, held: LeaseHolder | None) -> SeatsUpdate:
        return SeatsUpdate("{}", 1, 7, True, LeaseHolder(1, "primary", 10.0))

    hosts[0].change(["p.one"], seating)
    primary, secondary = Lease("p.one", "primary", 1), Lease("p.one", "secondary", 7, shared=True)
    for epoch in (1, 2, 3):
        plan_epoch(store, primary, epoch, plan_text({}), 1.0)
        commit_epoch(store, primary, epoch, text({}), 2.0, forget=[epoch - 1])
    assert store.look_up("p.one", 1) is None
    with pytest.raises(LeaseLostError, match="no longer retained"):
        plan_epoch(store, secondary, 1, plan_text({"by": "secondary"}), 3.0)
    assert store.look_up("p.one", 1) is None
    assert plan_epoch(store, secondary, 4, plan_text({"by": "secondary"}), 3.0) == text({"by": "secondary"})
