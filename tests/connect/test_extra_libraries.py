"""Connectors whose library is not installed say so when they are declared, with the way to install it; one that is
installed is imported where it is first used."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import polars as pl
import holdfast as hf

optional = {"deltalake", "pyiceberg", "psycopg", "confluent_kafka", "fastavro", "grpc", "highspy"}
assert not optional & set(sys.modules), "nobody else is to wait for them"
url = "postgresql://user@host/database"


def planned():
    from holdfast.replica.completeness import CompletenessSettings, completeness_planner

    pipeline = hf.Pipeline("p", guarantee=hf.Guarantee(completeness=0.7))
    completeness_planner(pipeline, None, None, ["one", "two"], [], CompletenessSettings(), print)


for library, make in (
    ("deltalake", lambda: hf.sink.delta("t")),
    ("deltalake", lambda: hf.source.delta("t")),
    ("pyiceberg", lambda: hf.sink.iceberg("a.b", "c")),
    ("pyiceberg", lambda: hf.source.iceberg("a.b", "c")),
    ("psycopg", lambda: hf.sink.database(url, "t")),
    ("psycopg", lambda: hf.source.database(url, "t", "id")),
    ("confluent_kafka", lambda: hf.source.kafka("localhost:9092", "t", {"n": pl.Int64})),
    ("confluent_kafka", lambda: hf.sink.kafka("localhost:9092", "t")),
    ("fastavro", lambda: hf.kafka.avro("http://localhost")),
    ("google.protobuf", lambda: hf.kafka.protobuf(int)),
    ("grpc", lambda: hf.source.push({"n": pl.Int64}, flight="127.0.0.1:0")),
    ("highspy", planned),
):
    sys.modules[library] = None
    try:
        make()
    except hf.errors.DeclarationError as error:
        assert f"needs the library '{library}', which is not installed" in error.problem, error.problem
        print(error.cure)
"""


def test_a_missing_library_is_named_with_the_way_to_install_it() -> None:
    told = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    extras = ("delta", "delta", "iceberg", "iceberg", "postgresql", "postgresql", *["kafka"] * 4, "flight", "laar")
    assert told.splitlines() == [f"pip install 'holdfast[{extra}]'" for extra in extras]
