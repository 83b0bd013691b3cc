"""A notebook shows a pipeline as the picture of its graph."""

from __future__ import annotations

from xml.etree import ElementTree

import polars as pl

import holdfast as hf

SVG = "{http://www.w3.org/2000/svg}"


def test_a_pipeline_is_shown_as_its_graph() -> None:
    pipeline = hf.Pipeline("shop")
    rows = pipeline.source(
        "orders", hf.source.memory(pl.DataFrame({"at": [1], "k<1": ["x"]})), event_time="at", time_unit="ms"
    )
    counts = rows.key_by("k<1").window(hf.window.tumbling("1s"), name="counts").agg(n=hf.count())
    counts.sink("out", hf.sink.collect())
    counts.late.sink("late", hf.sink.collect())
    picture = ElementTree.fromstring(pipeline._repr_html_())
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"orders", "counts", "out", "late", "by k<1", "stateful operator"} <= set(texts)
    assert len(picture.findall(f"{SVG}path")) == 4
    assert len(picture.findall(f"{SVG}g")) == 5


def test_a_pipeline_without_operators_is_an_empty_picture() -> None:
    assert ElementTree.fromstring(hf.Pipeline("shop")._repr_html_()).findall(f"{SVG}g") == []
