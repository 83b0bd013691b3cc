"""A session is warmed up once, and nothing of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.engine import warmup
from holdfast.engine.warmup import warm_up


@pytest.mark.spark
def test_a_session_is_warmed_up_once_and_nothing_stays(spark: SparkSession, tmp_path: Path) -> None:
    warmup._warm.discard(spark)
    assert warm_up(spark, tmp_path / "work")
    assert not warm_up(spark, tmp_path / "work")
    assert list((tmp_path / "work").iterdir()) == []
