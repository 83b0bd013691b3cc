"""How long a takeover took, as a host tells it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from holdfast.meta import MetaStore
from holdfast.replica.host import Host, HostSettings
from holdfast.replica.host_events import FragmentTakenOver, HostEvent
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Turn

TIMING = Timing(beat=0.01, detection=0.05)


@pytest.fixture
def meta(tmp_path: Path) -> Iterator[MetaStore]:
    made = MetaStore(tmp_path, sync=False)
    Agreement(made, "up", time.time).open("f", PASSIVE_REPLICATION)
    yield made
    made.close()


@pytest.fixture
def told() -> list[float]:
    return []


@pytest.fixture
def gaps() -> list[tuple[float, dict[str, float]]]:
    return []


@pytest.fixture
def host(
    meta: MetaStore, tmp_path: Path, told: list[float], gaps: list[tuple[float, dict[str, float]]]
) -> Iterator[Host]:
    def emit(event: HostEvent) -> None:
        told.extend([event.seconds] if isinstance(event, FragmentTakenOver) else [])

    def load(target: str) -> Any:
        raise AssertionError(target)

    made = Host(HostSettings(name="two", store=tmp_path, timing=TIMING, sync=False), load, emit)
    ignored: Any = SimpleNamespace(
        took_over=lambda scheme, gap, *given, **more: gaps.append((gap, more)), began=lambda seconds: None, rhythm=0.2
    )
    made.loops["f"] = ignored
    made.member.sessions = True
    made.member.serve("f")
    yield made
    made._meta.close()


def take_over(host: Host, *, told: bool = True) -> None:
    until = time.monotonic() + 30.0
    while not host.member.serve("f").keeper.is_primary and time.monotonic() < until:
        time.sleep(TIMING.beat)
        host.member.beat()
    host.member.beat()
    host.member.beat()  # its own beats in the first seat are not those of another
    if told:
        host._takeovers.took_over("f", 0)


def primary(meta: MetaStore) -> Membership:
    made = Membership("one", 1, Agreement(meta, "one", time.time), TIMING, lambda why: None)
    made.sessions = True
    made.serve("f")
    made.beat()
    assert made.serve("f").keeper.is_primary
    return made


def age() -> float:
    return time.time() - psutil.Process().create_time()


def test_a_process_that_was_started_to_take_over_counts_from_its_start(
    meta: MetaStore, host: Host, told: list[float]
) -> None:
    primary(meta)  # and is not seen to beat by the other
    least = age()
    take_over(host)
    assert len(told) == 1
    assert told[0] >= least


def test_a_process_that_was_there_before_counts_from_its_seat(meta: MetaStore, host: Host, told: list[float]) -> None:
    """It serves another fragment, too, and so did not end while the primary lived."""
    one = primary(meta)
    for _ in range(3):
        host.member.beat()
        one.beat()
    host.member.beat()
    began = time.monotonic()
    take_over(host)
    assert len(told) == 1
    assert told[0] <= time.monotonic() - began
    assert told[0] < age()


@pytest.mark.parametrize("first", ["the takeover", "the output"])
def test_the_gap_is_told_when_the_output_has_gone_on_and_has_all_of_it(
    meta: MetaStore, host: Host, gaps: list[tuple[float, dict[str, float]]], first: str
) -> None:
    """From the last beat of the primary at least, however the takeover and the first commit come."""
    Agreement(meta, "up", time.time).ask({"f": [Turn(0, DEPLOYED)]})
    one = primary(meta)
    for _ in range(3):
        host.member.beat()
        one.beat()
    host.member.beat()
    died = time.monotonic()
    take_over(host, told=first == "the takeover")
    assert gaps == [], "nobody knows yet"
    now = time.time()
    host._takeovers.put_out("f", SimpleNamespace(epoch=7, started=now, committed=now))  # type: ignore[arg-type]
    if first == "the output":
        host._takeovers.took_over("f", 0)
    [(gap, parts)] = gaps
    assert parts["noticed"] >= TIMING.detection
    assert parts["noticed"] + parts["steps"] <= gap + 1e-3
    # Of the commit before nothing is known here: then it is a rhythm and two beats earlier.
    assert gap <= time.monotonic() - died + 0.2 + 4 * TIMING.beat
    host._takeovers.put_out("f", SimpleNamespace(epoch=8, started=now, committed=now))  # type: ignore[arg-type]
    assert len(gaps) == 1, "the next epoch is no news"
