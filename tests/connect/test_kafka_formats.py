"""Values of messages: Avro and Protobuf with a schema registry, and what does not fit."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime

import fastavro
import polars as pl
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import holdfast as hf
from holdfast.connect.kafka.message_format import JsonMessages
from holdfast.connect.kafka.schema_registry import FRAME
from holdfast.errors import DeclarationError, OperatorError, UnknownColumnError, WrongTypeError
from registry_server import RegistryServer, running

ROWS = pl.DataFrame(
    {
        "n": [1, None],
        "small": [1, -1],
        "x": [0.5, None],
        "text": ["ä", ""],
        "raw": [b"\x00", None],
        "yes": [True, False],
        "day": [date(2024, 2, 29), None],
        "at": [datetime(2024, 1, 1, 12, 0, 0, 1), datetime(1960, 1, 1)],
        "moment": [datetime(2024, 1, 1, tzinfo=UTC), None],
        "tags": [["a", None], []],
        "inner": [{"a": 1, "b": "x"}, {"a": None, "b": None}],
    },
    schema_overrides={"small": pl.Int16, "moment": pl.Datetime("ms", "UTC")},
)


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryServer]:
    with running() as server:
        yield server


def written(registry: RegistryServer, schema: object, *rows: object) -> list[bytes]:
    """Messages as another program writes them."""
    number = registry.add("t-value", json.dumps(schema))
    made = []
    for row in rows:
        out = io.BytesIO(FRAME.pack(0, number))
        out.seek(FRAME.size)
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)  # type: ignore[arg-type]
        made.append(out.getvalue())
    return made


def record(**fields: object) -> dict[str, object]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def test_rows_come_back_from_avro_as_they_were(registry: RegistryServer) -> None:
    format = hf.kafka.avro(registry.url)
    format.check_schema("x", ROWS.schema)
    values = format.encode(ROWS, "pages")
    assert registry.subjects["pages-value"] == [FRAME.unpack_from(values[0])[1]]
    found = pickle.loads(pickle.dumps(format)).decode([*values, None], ROWS.schema)
    assert found.bad == {}
    assert found.frame[:2].equals(ROWS)
    assert found.frame[2].null_count().sum_horizontal().item() == ROWS.width


def test_a_message_is_read_by_the_schema_it_was_written_with(registry: RegistryServer) -> None:
    old = written(registry, record(n="int", gone="string"), {"n": 1, "gone": "x"})
    new = written(registry, record(more=["null", "string"], n="long"), {"n": 2, "more": "y"}, {"n": 3, "more": None})
    asked = registry.asked
    format = hf.kafka.avro(registry.url)
    schema = pl.Schema({"n": pl.Int64, "more": pl.String})
    assert format.decode([*old, *new, *old], schema).frame.rows() == [(1, None), (2, "y"), (3, None), (1, None)]
    assert registry.asked == asked + 2  # each schema is asked for once
    format.decode(old, schema)
    assert registry.asked == asked + 2


def test_avro_that_does_not_fit_is_told_by_its_message(registry: RegistryServer) -> None:
    good = written(registry, record(n="long"), {"n": 1})[0]
    wide = written(registry, record(n="string"), {"n": "many"})[0]
    values = [good, b"\x00\x00", b"{}garbage", good[:5], wide, good]
    found = hf.kafka.avro(registry.url).decode(values, pl.Schema({"n": pl.Int64}))
    assert found.frame.rows() == [(1,), (1,)]
    assert sorted(found.bad) == [1, 2, 3, 4]
    assert "too short" in found.bad[1]
    assert "begins with byte 123" in found.bad[2]
    assert "no Avro of schema" in found.bad[3]
    assert "'many' in column 'n' is not Int64" in found.bad[4]


def test_a_schema_that_the_registry_does_not_have_ends_the_run_with_a_cure(registry: RegistryServer) -> None:
    with pytest.raises(OperatorError, match="answered 404 to /schemas/ids/4711") as caught:
        hf.kafka.avro(registry.url).decode([FRAME.pack(0, 4711)], pl.Schema({"n": pl.Int64}))
    assert "check that the schema exists" in caught.value.cure
    with pytest.raises(OperatorError, match="did not respond as a schema registry"):
        hf.kafka.avro("http://127.0.0.1:1").decode([FRAME.pack(0, 1)], pl.Schema({"n": pl.Int64}))


def test_a_registry_may_want_a_password_which_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush-hush")
    with running("me", "hush-hush") as server:
        own = hf.kafka.registry(server.url, user="me", password="env:REGISTRY_PASSWORD")
        assert len(hf.kafka.avro(own).encode(ROWS.select("n"), "t")) == 2
        assert "hush-hush" not in f"{own!r} {hf.kafka.avro(own)!r}"
        assert b"hush-hush" not in pickle.dumps(own)
        monkeypatch.setenv("REGISTRY_PASSWORD", "wrong-word")
        with pytest.raises(OperatorError, match="answered 401") as caught:
            hf.kafka.avro(own).encode(ROWS.select("x"), "t")
        assert "wrong-word" not in str(caught.value)
    with pytest.raises(DeclarationError, match="must not be written in a program") as refused:
        hf.kafka.registry("http://h", user="me", password="hush-hush")
    assert "hush-hush" not in str(refused.value)
    with pytest.raises(DeclarationError, match="has a user or a password in it"):
        hf.kafka.registry("http://me:hush-hush@h")


def test_columns_that_avro_cannot_hold_are_refused_when_declared(registry: RegistryServer) -> None:
    with pytest.raises(WrongTypeError, match="column 'd': Avro cannot hold Duration"):
        hf.kafka.avro(registry.url).check_schema("hf.sink.kafka()", pl.Schema({"d": pl.Duration("us")}))


def protobuf_class() -> type:
    """A class as the compiler makes it, without the compiler."""
    file = descriptor_pb2.FileDescriptorProto(name="page.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    other = file.message_type.add(name="Other")
    other.field.add(name="a", number=1, type=3, label=1)
    page = file.message_type.add(name="Page")
    kind = page.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="AD", number=1)
    page.oneof_decl.add(name="_maybe")
    page.field.add(name="n", number=1, type=3, label=1)
    page.field.add(name="text", number=2, type=9, label=1)
    page.field.add(name="maybe", number=3, type=1, label=1, proto3_optional=True, oneof_index=0)
    page.field.add(name="kind", number=4, type=14, label=1, type_name=".shop.Page.Kind")
    page.field.add(name="tags", number=5, type=9, label=3)
    page.field.add(name="at", number=6, type=11, label=1, type_name=".google.protobuf.Timestamp")
    page.field.add(name="other", number=7, type=11, label=1, type_name=".shop.Other")
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Page"))


def test_rows_come_back_from_protobuf_as_they_were(registry: RegistryServer) -> None:
    pytest.importorskip("google.protobuf.timestamp_pb2")
    made = protobuf_class()
    rows = pl.DataFrame(
        {
            "n": [7, 0],
            "text": ["ä", ""],
            "maybe": [0.0, None],
            "kind": ["AD", "NONE"],
            "tags": [["a", "b"], []],
            "at": [datetime(2024, 1, 1, 12), None],
            "other": [{"a": 5}, None],
        }
    )
    format = hf.kafka.protobuf(made, registry=registry.url)
    format.check_schema("x", rows.schema)
    values = format.encode(rows, "pages")
    assert registry.schemas[FRAME.unpack_from(values[0])[1] - 1][0] == "PROTOBUF"
    assert made.FromString(values[0][7:]).n == 7  # type: ignore[attr-defined] - 5 bytes, then the path 1, 1
    found = pickle.loads(pickle.dumps(format)).decode([*values, values[0][:4], values[0][:7] + b"\xff"], rows.schema)
    assert found.frame.equals(rows)
    assert "too short" in found.bad[2]
    assert "no message shop.Page" in found.bad[3]
    bare = hf.kafka.protobuf(made)
    assert bare.decode([made(n=3).SerializeToString()], pl.Schema({"n": pl.Int64})).frame.rows() == [(3,)]
    with pytest.raises(UnknownColumnError, match=r"the message shop.Page has no field 'm'; it has n, text"):
        format.check_schema("hf.sink.kafka()", pl.Schema({"m": pl.Int64}))
    with pytest.raises(WrongTypeError, match="is not a Protobuf message class"):
        hf.kafka.protobuf(dict)


def test_json_values_are_objects_one_for_one() -> None:
    schema = pl.Schema({"n": pl.Int64})
    assert JsonMessages().decode([b"", b" "], schema).bad == {0: "an empty value", 1: "an empty value"}
    assert JsonMessages().decode([b'{"n":1}{"n":2}'], schema).bad.keys() == {0}
    assert JsonMessages().decode([None, b"{}"], schema).frame.rows() == [(None,), (None,)]
    rows = pl.DataFrame({"s": ["a\nb", 'q"', None]})
    values = JsonMessages().encode(rows, "t")
    assert [json.loads(value) for value in values] == rows.to_dicts()
