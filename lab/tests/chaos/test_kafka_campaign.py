"""A campaign whose rows come from a real broker and go to it, while the broker, too, is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast_lab.chaos.campaign import Campaign
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.kafka_topics import thinned


def test_epochs_are_thinned_to_what_can_be_sent_soon() -> None:
    assert [thinned(rows) for rows in (1_000, 5_000, 500_000)] == [1, 1, 100]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("HOLDFAST_FUZZ"), reason="long; `holdfast chaos YSB --kafka` does it")
def test_what_readers_of_committed_messages_see_equals_the_fault_free_run(tmp_path: Path) -> None:
    try:
        server = KafkaServer()
    except HoldfastError as error:
        pytest.skip(f"there is no Kafka broker to start: {error.problem}")
    with server:
        campaign = Campaign("YSB", 3, 1, ["driver", "worker", "broker"], tmp_path, None, print, broker=server)
        result = campaign.run()
    assert result.equal
    assert len(result.strikes) == 3
