"""The experiments on compression, at a scale at which they show that they measure, not how fast the machine is."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_lab.codecs.codec_measurements import FIXED
from holdfast_lab.codecs.distributions import DISTRIBUTIONS
from holdfast_lab.experiment import Result, Settings
from holdfast_lab.experiment.plots import save
from holdfast_lab.experiment.scabbard import adaptive_compression, codec_comparison


def settings(work: Path) -> Settings:
    return Settings(quick=True, seed=1, work=work, say=lambda text: None)


def draws(result: Result, place: Path) -> bool:
    assert result.plot is not None
    return all(path.stat().st_size > 10_000 for path in save(result.plot, "title", place, "plot"))


@pytest.mark.long
def test_codecs_are_measured_on_all_data_and_the_paper_s_statements_hold(tmp_path: Path) -> None:
    result = codec_comparison.measured(settings(tmp_path), rows=4_096, seconds=0.5)
    assert {row["data"] for row in result.rows} == set(DISTRIBUTIONS)
    assert all(row["ratio"] > 0 and row["encode_gb_s"] > 0 for row in result.rows)
    assert len(result.bars) == 6
    assert all(bar.ok for bar in result.bars)  # ratios, so they do not depend on the machine
    assert all(row["ratio"] is None for row in result.paper)
    assert draws(result, tmp_path)


def test_adaptive_compression_runs_every_scheme_before_and_after_the_change(tmp_path: Path) -> None:
    result = adaptive_compression.measured(settings(tmp_path), seconds=0.05, rows=4_096)
    found = {(row["part"], row["scheme"]): row for row in result.rows}
    assert found.keys() == {(part, scheme) for part in ("before", "after") for scheme in ("adaptive", *FIXED)}
    assert all(row["tuples_per_s"] > 0 for row in result.rows)
    assert found["before", "adaptive"]["ratio"] > found["before", "plain"]["ratio"]
    assert len(result.bars) == 4
    assert result.also["switches_s"]
    assert not list((tmp_path / "units").iterdir())
    assert draws(result, tmp_path)


@pytest.mark.parametrize("name", ["delta(delta(narrow))", "bytes(zstd)", "text(bytes(lz4), narrow)", "base-delta"])
def test_encodings_are_grouped_by_what_they_do_first(name: str) -> None:
    families = {"delta(delta(narrow))": "delta-of-delta", "bytes(zstd)": "zstd", "text(bytes(lz4), narrow)": "lz4"}
    assert codec_comparison._family(name) == families.get(name, "base-delta")
