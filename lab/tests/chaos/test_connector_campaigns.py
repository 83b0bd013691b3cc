"""Campaigns whose rows come from connectors and go to them, on real servers, of which the broker is killed, too."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from holdfast.errors import HoldfastError
from holdfast_lab.chaos.campaign import Campaign
from holdfast_lab.chaos.campaign_ends import SINKS, SOURCES, source_of, thinned, write_input
from holdfast_lab.chaos.connector_servers import open_servers
from holdfast_lab.chaos.victim import VictimSettings
from holdfast_lab.cli.chaos import chaos
from holdfast_lab.workloads.queries import query


def test_epochs_are_thinned_to_what_can_be_written_soon() -> None:
    assert [thinned(rows) for rows in (1_000, 5_000, 500_000)] == [1, 1, 100]


def test_the_command_offers_every_connector() -> None:
    choices = {option.name: option.type for option in chaos.params}
    for name, known in (("source", SOURCES), ("sink", SINKS)):
        found = choices[name]
        assert isinstance(found, click.Choice)
        assert tuple(found.choices) == known


@pytest.mark.parametrize(
    "source",
    ["delta", "sqlite", *(pytest.param(name, marks=pytest.mark.long) for name in ("files", "iceberg", "duckdb", "s3"))],
)
def test_every_source_gives_the_rows_of_the_input_in_their_order(source: str, tmp_path: Path) -> None:
    with open_servers({source}, print) as servers:
        settings = VictimSettings(
            "YSB", 3_000, 1_000, 0.0, str(tmp_path), str(tmp_path / "input"), source=source, servers=servers.addresses
        )
        write_input(settings, 2)
        made = source_of(settings, query("YSB"))
        position, done, times = made.start(), False, []
        while not done:
            take = made.take(position, 1_000, 1)
            for piece in take.slices:
                times += [time for chunk in made.read(piece) for time in chunk.frame["event_time"].to_list()]
            position, done = take.position, take.done
    assert len(times) == 3_000
    assert times == sorted(times)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "sink"),
    [("kafka", "kafka"), ("s3", "s3"), ("delta", "delta"), ("iceberg", "iceberg"), ("postgresql", "postgresql"),
     ("duckdb", "duckdb"), ("sqlite", "sqlite"), ("files", "parquet")],
)  # fmt: skip
def test_what_readers_see_equals_the_fault_free_run(source: str, sink: str, tmp_path: Path) -> None:
    kinds = ["driver", "worker", *(["broker"] if source == "kafka" else [])]
    try:
        with open_servers({source, sink}, print) as servers:
            campaign = Campaign(
                "YSB", len(kinds), 1, kinds, tmp_path, None, print,  # type: ignore[arg-type]
                source=source, sink=sink, servers=servers,
            )  # fmt: skip
            result = campaign.run()
    except HoldfastError as error:
        if "cannot fetch" not in error.problem:
            raise
        pytest.skip(f"there is no Kafka broker to start: {error.problem}")
    assert result.equal
    assert len(result.strikes) == len(kinds)
