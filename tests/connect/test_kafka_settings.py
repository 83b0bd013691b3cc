"""How brokers are reached: what is refused when it is declared, and secrets that are never shown."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.errors import DeclarationError, HoldfastError, WrongTypeError

ROW = {"n": pl.Int64}


@pytest.mark.parametrize(
    ("given", "problem", "cure"),
    [
        ({"addresses": "nowhere"}, "is not a list of broker addresses", '"host:port"'),
        ({"addresses": "h:99999"}, "is not a list of broker addresses", '"host:port"'),
        ({"ca": "ca.pem"}, "certificates without tls", "tls=True"),
        ({"tls": True, "ca": "no.pem"}, "there is no file", "PEM"),
        ({"tls": True, "certificate": "c.pem"}, "TLS without its key", "key="),
        ({"sasl": "MAGIC", "user": "me", "password": "env:HOME"}, "unknown sasl='MAGIC'", "SCRAM-SHA-512"),
        ({"sasl": "PLAIN", "user": "me"}, "go together", "password"),
        ({"sasl": "PLAIN", "user": "me", "password": "hush-hush"}, "must not be written in a program", "env:NAME"),
        ({"sasl": "PLAIN", "user": "me", "password": "env:HF_NOT_SET"}, "empty or missing", "set it"),
        ({"sasl": "PLAIN", "user": "me", "password": "file:/no/such"}, "cannot be read", "put it there"),
        ({"settings": {"sasl.password": "hush-hush"}}, "must not be written in a program", "env:NAME"),
        ({"settings": {"bootstrap.servers": "x"}}, "cannot be set", "addresses"),
        ({"settings": {"isolation.level": "read_uncommitted"}}, "cannot be set", "aborted"),
        ({"settings": {"no.such": 1}}, "refuses the settings", "librdkafka"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_cure(given: dict[str, Any], problem: str, cure: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        hf.kafka.servers(**{"addresses": "127.0.0.1:9092", **given})
    assert problem in caught.value.problem
    assert cure in caught.value.cure
    assert "hush-hush" not in str(caught.value)


def test_a_password_is_looked_up_where_it_is_needed_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KAFKA_WORD", "hush-hush")
    (tmp_path / "word").write_text("very-secret\n")
    caplog.set_level(logging.DEBUG)
    for reference, word in (("env:KAFKA_WORD", "hush-hush"), (f"file:{tmp_path / 'word'}", "very-secret")):
        made = hf.kafka.servers("127.0.0.1:1", sasl="PLAIN", user="me", password=reference)
        assert made.configuration("x")["sasl.password"] == word
        assert made.configuration("x")["security.protocol"] == "SASL_PLAINTEXT"
        source = hf.source.kafka(made, "t", ROW)
        sink = hf.sink.kafka(made, "t")
        pipeline = hf.Pipeline("p")
        pipeline.source("in", source).sink("out", sink)
        shown = f"{made} {made!r} {source.describe()} {sink!r} {sink.describe()} {hf.explain(pipeline)} {caplog.text}"
        assert word not in shown
        assert word.encode() not in pickle.dumps((source, sink))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"format": "xml"}, "unknown format='xml'"),
        ({"start": "soon"}, "unknown start='soon'"),
        ({"start": {0: -1}}, "is not a mapping of partitions to offsets"),
        ({"expired": "ignore"}, "unknown expired='ignore'"),
        ({"bad_rows": "drop"}, "unknown bad_rows='drop'"),
        ({"topic": "a/b"}, "cannot be the name of a topic"),
        ({"format": "bytes"}, "one column of type Binary"),
        ({"schema": {}}, "the schema has no column"),
        ({"schema": {"n": pl.Duration("us")}}, "JSON cannot hold"),
        ({"schema": {"n": pl.Int64}, "key": "n"}, "should hold the key of messages, but is declared as Int64"),
        ({"key": "k", "headers": "k"}, "is used for two fields"),
    ],
)
def test_a_source_that_cannot_work_is_refused_when_it_is_declared(given: dict[str, Any], problem: str) -> None:
    settings: dict[str, Any] = {"topic": "t", "schema": ROW, **given}
    with pytest.raises(DeclarationError) as caught:
        hf.source.kafka("127.0.0.1:9092", **settings)
    assert problem in caught.value.problem
    assert "hf.source.kafka()" in caught.value.problem
    assert caught.value.cure


def test_addresses_may_be_several() -> None:
    assert str(hf.source.kafka("a:1,b:2", "t", ROW).servers) == "a:1,b:2"
    with pytest.raises(WrongTypeError, match="is not a list of broker addresses"):
        hf.sink.kafka("a:1,,b:2", "t")
