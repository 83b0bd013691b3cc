"""The client of `holdfast bench ingress`, and what the benchmark tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import main
from holdfast_lab.bench import ingress_load
from holdfast_lab.bench.ingress_load import IngressFigures


@pytest.mark.parametrize("protocol", ["http", "flight"])
def test_counts_the_rows_that_were_acknowledged(protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress_load, "BATCH_ROWS", 1000)
    monkeypatch.setattr(ingress_load, "_WARM_UP_SECONDS", 0.0)

    with ingress_load._receivers(protocol, tmp_path / "store") as port:
        sent = ingress_load._client(protocol, port, 2.0)

    [stream] = json.loads(CliRunner().invoke(main, ["streams", "--store", str(tmp_path / "store"), "--json"]).stdout)
    # All but the first batch, from whose acknowledgement on the time is taken.
    assert sent.rows == sent.batches * 1000 == stream["offset"] - 1000
    assert sent.seconds > 0


def test_tells_rates_and_bars() -> None:
    slow, fast = ingress_load._Sent(1_000_000, 4, 4.0, 9.0), ingress_load._Sent(8_000_000, 32, 2.0, 20.0)

    told = IngressFigures("ysb", 250_000, {"http": slow, "flight": fast}).to_json()

    assert (told["http"]["rows_per_s"], told["http"]["passed"]) == (250_000, False)
    assert (told["flight"]["rows_per_s"], told["flight"]["passed"]) == (4_000_000, True)
