"""The pipeline of a campaign, as a file that hosts load. What it is, is in their environment."""

from __future__ import annotations

import json
import os
from pathlib import Path

from holdfast.connect.sinks.file_sink import parquet
from holdfast.graph.pipeline import Pipeline
from holdfast_lab.chaos.gate import GatedSource
from holdfast_lab.chaos.victim import PIPELINE, VictimSettings, endless_input
from holdfast_lab.workloads.queries import query

__all__ = ["GATE", "SETTINGS", "build"]

SETTINGS = "HOLDFAST_CHAOS_VICTIM"
GATE = "gate.json"


def build() -> Pipeline:
    settings = VictimSettings(**json.loads(os.environ[SETTINGS]))
    asked = query(settings.query)
    inner = endless_input(asked, Path(settings.input))
    source = GatedSource(inner, Path(settings.home) / GATE, settings.epoch_rows)
    persist: dict[str, object] | None = {} if settings.persist else None
    return asked.build(source, parquet(settings.output), pipeline_name=PIPELINE, persist=persist)
