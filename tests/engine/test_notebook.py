"""What a notebook shows: of a pipeline its graph, of a plan its text, of a run and of events a table."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import holdfast as hf
from holdfast.engine.summary import FragmentSummary, RunSummary
from watched_runs import orders_pipeline, run_watched


def test_the_plan_is_shown_line_by_line() -> None:
    text = hf.explain(orders_pipeline())
    shown = ElementTree.fromstring(text._repr_html_())  # type: ignore[attr-defined]
    assert shown.tag == "pre"
    assert shown.text == text == str(text)
    assert text.startswith("pipeline orders: 2 stages\n")


def test_a_run_is_shown_as_a_table_of_its_fragments() -> None:
    summary = RunSummary("shop", fragments={"shop.a<b": FragmentSummary("shop.a<b", epochs=3, last_epoch=1_234)})
    shown = ElementTree.fromstring(f"<div>{summary._repr_html_()}</div>")
    assert [cell.text for cell in shown.iter("td")][:3] == ["a<b", "1,234", "3"]
    assert shown.findtext("p") == str(summary)


def test_events_are_a_table(tmp_path: Path) -> None:
    run_watched(tmp_path, orders_pipeline(500))
    assert "<table" in hf.events(tmp_path)._repr_html_()
