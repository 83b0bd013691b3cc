"""Events are kept beside the state, by time and by number, and are read while others write them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.epoch.record_change import record_of
from holdfast.meta import opened_meta
from holdfast.watch.event_kinds import EpochsDone, ErrorSeen, LoggedEvent, NoticeGiven
from holdfast.watch.event_log import EVENTS, EventLog, EventRetention, event_directory, event_files
from holdfast.watch.event_reader import EventTail, read_events
from holdfast.watch.event_table import KINDS
from holdfast.watch.pipeline_description import kept_descriptions
from watched_runs import FIRST, orders_pipeline, run_watched


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watched")
    run_watched(path, orders_pipeline())
    return path


def told(*texts: str, at: float = 1_000.0) -> list[LoggedEvent]:
    return [NoticeGiven(at=at + number, message=text) for number, text in enumerate(texts)]


def test_a_run_leaves_events_with_the_figures_of_its_commits(store: Path) -> None:
    epochs = [event for event in read_events(store) if isinstance(event, EpochsDone)]
    with opened_meta(store, None) as meta:
        commit = meta.last_commit("orders")
    assert commit is not None
    totals = record_of(commit).totals
    assert sum(event.rows for event in epochs) == totals["read"] == 4_000
    assert sum(event.output_rows for event in epochs) == totals["output"]
    assert sum(event.late_rows for event in epochs) == totals["late"] > 0
    assert sum(event.count for event in epochs) == epochs[-1].epoch == commit.epoch
    assert epochs[-1].read == {"in": epochs[-1].rows}
    assert epochs[-1].greatest == {"in": FIRST + 3_998}
    assert 0 < epochs[-1].p50 <= epochs[-1].p99 <= epochs[-1].longest
    assert set(epochs[-1].phases) == {"wait", "read", "exchange", "assemble", "sync", "commit", "publish"}
    assert (
        sum(share.rows for event in epochs for share in event.work["counts"]) >= 4 * 4
    )  # partial counts by country and second


def test_events_are_a_table(store: Path) -> None:
    frame = hf.events(store)
    assert frame.schema == {
        "at": pl.Datetime("us", "UTC"), "pipeline": pl.String, "fragment": pl.String, "host": pl.String,
        "kind": pl.String, "epoch": pl.Int64, "text": pl.String, "details": pl.String,
    }  # fmt: skip
    assert {"started", "epochs", "late", "decision"} <= set(frame["kind"])
    late = hf.events(store, kind="late", since="1 h ago")
    assert sum(json.loads(text)["rows"] for text in late["details"]) == 40
    assert hf.events(store, pipeline="nothing").height == 0
    assert hf.events(store, until="1 h ago").height == 0


def test_the_command_shows_and_prints_them(store: Path) -> None:
    shown = CliRunner().invoke(main, ["events", "--store", str(store), "--kind", "late"])
    assert shown.exit_code == 0
    assert "came too late" in shown.output
    lines = CliRunner().invoke(main, ["events", "orders", "--store", str(store), "--json"]).output.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == hf.events(store)["kind"].to_list()
    assert CliRunner().invoke(main, ["events", "--store", str(store), "--since", "0s"]).output == ""


def test_a_kind_that_is_none_is_an_error_that_names_all(store: Path) -> None:
    shown = CliRunner().invoke(main, ["events", "--store", str(store), "--kind", "lates"])
    assert shown.exit_code == 1
    assert all(kind in shown.output for kind in KINDS)


def test_every_kind_is_a_sentence_and_comes_back_as_it_was() -> None:
    for kind in EVENTS.type.__args__:
        given = {"about": "policy"} if kind.__name__ == "DecisionMade" else {}
        event = kind(at=1.0, pipeline="p", fragment="p.f", host="a", epoch=7, **given)
        assert EVENTS.decode(msgspec.json.encode(event)) == event
        assert isinstance(event.text, str)


def test_a_run_that_fails_leaves_its_error(tmp_path: Path) -> None:
    with pytest.raises(hf.HoldfastError):
        run_watched(tmp_path, orders_pipeline(failing=True))
    [error] = [event for event in read_events(tmp_path) if isinstance(event, ErrorSeen)]
    assert "no such country" in error.message


def test_the_pipeline_is_described_for_those_who_do_not_have_its_code(store: Path) -> None:
    described = kept_descriptions(store)["orders"]
    assert [(node.name, node.kind, node.inputs) for node in described.nodes] == [
        ("in", "source", ()), ("counts", "stateful", ("in",)), ("out", "sink", ("counts",)),
    ]  # fmt: skip
    assert (described.guarantee.recovery, described.fragments) == (5.0, ("orders",))


def test_a_line_that_was_cut_off_and_one_of_a_newer_version_are_skipped(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        for event in told("first", "second"):
            log.put(event)
    [path] = event_files(tmp_path)
    path.write_bytes(b'{"kind":"of tomorrow","at":5}\n' + path.read_bytes() + b'{"kind":"notice","at":9,"mess')
    assert [event.text for event in read_events(tmp_path)] == ["first", "second"]
    tail = EventTail(tmp_path, 0.0)
    assert [event.text for event in tail.new()] == ["first", "second"]
    with path.open("ab") as file:
        file.write(b'age":"third"}\n')
    assert [event.text for event in tail.new()] == ["third"]
    assert tail.new() == []


def test_several_processes_write_at_a_time_and_one_reads(tmp_path: Path) -> None:
    with EventLog(tmp_path, "host-a") as first, EventLog(tmp_path, "host-b") as second:
        tail = EventTail(tmp_path, 0.0)
        for number, event in enumerate(told(*map(str, range(10)))):
            (first, second)[number % 2].put(event)
        first.flush()
        second.flush()
        assert [event.text for event in tail.new()] == [str(number) for number in range(10)]
    assert len(event_files(tmp_path)) == 2


def test_old_events_go_and_so_do_those_that_are_too_many(tmp_path: Path) -> None:
    day = 86_400.0
    now = 1_000 * day
    for age in (9, 6, 5, 1):
        with EventLog(tmp_path, clock=lambda at=now - age * day: at) as log:  # type: ignore[misc]
            for event in told(*[f"{age} days"] * 10):
                log.put(event)
        newest = event_files(tmp_path)[-1]
        os.utime(newest, (now - age * day,) * 2)
    with EventLog(tmp_path, retention=EventRetention(events=15), clock=lambda: now) as log:
        log.put(told("now")[0])
    assert {event.text for event in read_events(tmp_path)} == {"now", "1 days", "5 days"}


def test_events_are_bounded_by_bytes_too(tmp_path: Path) -> None:
    now = 1_000_000.0
    for days in (3, 2, 1):
        at = now - days * 86_400.0
        with EventLog(tmp_path, clock=lambda at=at: at) as log:  # type: ignore[misc]
            log.put(NoticeGiven(at=at, message=f"{days} days {'x' * 1_000}"))
        os.utime(event_files(tmp_path)[-1], (at, at))
    with EventLog(tmp_path, retention=EventRetention(bytes=1_500), clock=lambda: now) as log:
        log.put(told("now")[0])
    assert {event.text[:6] for event in read_events(tmp_path)} == {"now", "1 days", "2 days"}


def test_where_nothing_can_be_written_nobody_fails(tmp_path: Path) -> None:
    event_directory(tmp_path).write_text("a file where the directory should be")
    with EventLog(tmp_path) as log:
        log.put(told("lost")[0])
    assert read_events(tmp_path) == []


def test_what_cannot_be_written_keeps_no_other_event_from_being_written(tmp_path: Path) -> None:
    def fail() -> list[LoggedEvent]:
        raise ValueError("no sum")

    with EventLog(tmp_path) as log:
        log.ask(fail)
        log.put(NoticeGiven(at=1.0, message="no file bad\udcff.csv"))
        log.put(NoticeGiven(at=2.0, message="good"))
    assert [event.message for event in read_events(tmp_path)] == ["no file bad?.csv", "good"]  # type: ignore[attr-defined]
