"""The experiment on persistence without a broker: streams, p-streams, the log that stands in, and fetching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from holdfast.errors import HoldfastError
from holdfast.meta import MetaStore
from holdfast.pstream.pstream import PStream
from holdfast_lab.experiment import Settings
from holdfast_lab.experiment.scabbard import durable_ingest, jars, kafka, persistence
from holdfast_lab.experiment.scabbard.endless_streams import replayed
from holdfast_lab.workloads.datasets import dataset


@pytest.mark.parametrize("name", ["cm", "sm", "ysb"])
def test_a_replayed_stream_goes_on_in_time_and_keeps_the_values(name: str) -> None:
    data = dataset(name)
    stream = replayed(data, rows=5_000, batches=2, seed=1)
    frames = [stream.batch(number) for number in range(5)]
    whole = pl.concat(frames)
    assert whole.height == 25_000
    assert whole[data.event_time].is_sorted()
    assert whole.schema == data.load(10).schema
    if data.real is not None:
        values = set(data.load().columns) - stream.steps.keys()
        sample = data.load()
        assert all(set(whole[column].unique()) <= set(sample[column].unique()) for column in values)
    assert stream.batch(3).equals(replayed(data, rows=5_000, batches=2, seed=1).batch(3))


def test_what_is_counted_as_ingested_is_in_the_stream(tmp_path: Path) -> None:
    data = dataset("cm")
    found = durable_ingest.into_pstream(tmp_path, data, replayed(data, 2_000, 2, 1), seconds=0.3, warm_up=0.0)
    meta = MetaStore(tmp_path)
    stream = PStream(meta, tmp_path, data.name)
    entries, rows, size = stream.retained()
    meta.close()
    assert 0 < found.rows <= rows
    assert rows % 2_000 == 0
    assert 0 < entries <= rows // 2_000  # small batches share an entry
    assert found.bytes_per_row == pytest.approx(size / rows)
    assert found.rows_per_s > 0
    assert (found.latency_ms(0.5) or 0) > 0


def test_without_a_broker_a_synced_log_takes_its_place_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def none(directory: Path, say: object) -> Iterator[kafka.Broker]:
        raise HoldfastError("there is no repository", cure="none")
        yield

    monkeypatch.setattr(persistence, "broker", none)
    monkeypatch.setattr(persistence, "_POOL_ROWS", 1 << 16)
    told: list[str] = []
    made = Settings(quick=True, seed=1, work=tmp_path, say=told.append)
    rows, missing = persistence._queue(made, {"cm": 64}, 0.1)
    assert missing == "there is no repository"
    assert [row["system"] for row in rows] == ["segment log, synced"]
    assert rows[0]["tuples_per_s"] > 0
    assert any("no Kafka" in line for line in told)
    assert any("no repository" in note for note in persistence._notes(missing))


def test_fetching_names_what_each_tool_said_and_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars.shutil, "which", lambda name: None)
    monkeypatch.setattr(jars, "_ivy", lambda name, parts, work, alone: "ivy said no")
    with pytest.raises(HoldfastError, match="mvn is not on the PATH; ivy said no") as caught:
        jars.fetch("thing", ["a:b:1"], lambda text: None)
    assert "Maven repository" in caught.value.cure
    assert list((tmp_path / "holdfast").iterdir()) == []


def test_what_was_fetched_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def tool(name: str, parts: object, work: Path, alone: bool) -> None:
        (work / "jars").mkdir()
        (work / "jars" / "b.jar").touch()

    monkeypatch.setattr(jars, "_maven", tool)
    assert [path.name for path in jars.fetch("thing", ["a:b:1"], lambda text: None).iterdir()] == ["b.jar"]
    monkeypatch.setattr(jars, "_maven", None)
    assert jars.fetch("thing", ["a:b:1"], lambda text: None).is_dir()


def test_the_steady_state_of_kafka_s_own_figures_is_read() -> None:
    told = (
        "9 records sent, 1.0 records/sec (0.1 MB/sec), 5.00 ms avg latency, 9.00 ms max latency, 1 ms 50th, 2 ms 95th,"
        " 3 ms 99th, 4 ms 99.9th.\n"
        "7 steady state records sent, 2.5 records/sec (0.1 MB/sec), 5.00 ms avg latency, 9.00 ms max latency,"
        " 5 ms 50th, 6 ms 95th, 7 ms 99th, 8 ms 99.9th.\n"
    )
    assert kafka._SUMMARY.findall(told)[-1] == ("7", "2.5", "5", "6", "7")
