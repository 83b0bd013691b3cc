"""The client of `holdfast bench ingress`, and what the benchmark tells."""

from __future__ import annotations

import pytest
from receiving import Serve

from holdfast.bench import ingress
from holdfast.bench.ingress import IngressFigures
from holdfast.workloads.datasets import dataset


@pytest.mark.parametrize("protocol", ["http", "flight"])
def test_counts_the_rows_that_were_acknowledged(serve: Serve, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress, "BATCH_ROWS", 1000)
    monkeypatch.setattr(ingress, "_WARM_UP_SECONDS", 0.0)
    receiving = serve(dataset("ysb").load(1).schema, event_time="event_time", **{protocol: "127.0.0.1:0"})

    sent = ingress._client(protocol, receiving.address(protocol)[1], 0.3)

    # All but the first batch, from whose acknowledgement on the time is taken.
    assert sent.rows == sent.batches * 1000 == receiving.appender.stream.state().offset - 1000
    assert sent.seconds > 0


def test_tells_rates_and_bars() -> None:
    slow, fast = ingress._Sent(1_000_000, 4, 4.0, 9.0), ingress._Sent(8_000_000, 32, 2.0, 20.0)

    told = IngressFigures("ysb", 250_000, {"http": slow, "flight": fast}).to_json()

    assert (told["http"]["rows_per_s"], told["http"]["passed"]) == (250_000, False)
    assert (told["flight"]["rows_per_s"], told["flight"]["passed"]) == (4_000_000, True)
