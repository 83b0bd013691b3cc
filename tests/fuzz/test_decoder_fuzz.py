"""Every decoder of what others wrote: whatever the bytes, the value or a typed error, soon and in bounded memory.

Each target begins with something valid and changes it: bytes are cut, set, doubled or replaced by numbers that often
hurt, values of JSON by others. `make fuzz` looks for longer.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import io
import json
import math
import resource
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client_batches import TakenBatch
from holdfast.connect.base import Chunk, Marks, Slice
from holdfast.connect.formats.columnar import ArrowFormat, ParquetFormat
from holdfast.connect.formats.csv import CsvFormat, CsvParser
from holdfast.connect.formats.lines import LineParser
from holdfast.connect.formats.ndjson import NdjsonParser
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.push import push
from holdfast.engine.transfer import _read
from holdfast.epoch import messages
from holdfast.epoch.digest import OutputDigest
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import DataHead, Message, RowsHead, TimesHead
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record import EpochRecord, Footing
from holdfast.epoch.sent_error import SentError
from holdfast.epoch.task_commit import PartitionWork, StreamReceipt, TaskCommit
from holdfast.errors import CorruptRecordError, HoldfastError, RefusedError, TakenBeforeError, UnknownVersionError
from holdfast.ingress.body_rows import BodyKind, TextParser, decode, sorted_blocks
from holdfast.ingress.flight_names import asked, batch_of
from holdfast.ingress.flight_wire import ArrowFeed, FlightData
from holdfast.ingress.media import Media, media_of, unpack
from holdfast.ingress.refusals import refusal
from holdfast.laar.json_reader import parse
from holdfast.meta import Entry
from holdfast.meta.sealed import SealedPlace
from holdfast.operators.footprint_messages import FootprintOrder, FootprintsLeft, OlderBatch
from holdfast.pstream.codecs import decode_frame, encode_frame
from holdfast.pstream.punit import PUnit, read_punit, write_punit
from holdfast.pstream.stream_entry import StreamEntry
from holdfast.pstream.units import read_unit
from holdfast.state.extent import LogExtent, LogMark, WindowMove
from holdfast.state.key_load import HeavyKey, KeyLoad
from holdfast.state.manifest import FULL_INTERVAL, MANIFEST_FORM, Interval, Manifest, Piece
from holdfast.state.routing import Routing
from holdfast.store import DirectoryStore
from holdfast.stored_json import JsonForm
from holdfast.task.inbox import decode_chunks, encode_chunks
from strategies import examples

SCHEMA = pl.Schema(
    {"id": pl.Int64(), "name": pl.String(), "at": pl.Datetime("us"), "on": pl.Boolean(), "list": pl.List(pl.Float64())}
)
FLAT = pl.Schema({name: dtype for name, dtype in SCHEMA.items() if name != "list"})
FRAME = pl.DataFrame(
    {
        "id": [1, 2, None, -(2**63)],
        "name": ["a", "", None, "long enough not to be inlined"],
        "at": [0, 1, None, 2],
        "on": [True, False, None, True],
        "list": [[1.5], [], None, [0.0, float("nan")]],
    },
    schema=SCHEMA,
)
SOURCE = push(SCHEMA, http="127.0.0.1:0", max_body="1 MB", bad_rows="skip")
FLAT_SOURCE = push(FLAT, http="127.0.0.1:0", max_body="1 MB")
HURTING = (0, 1, -1, 255, 2**16, 2**31 - 1, -(2**31), 2**31, 2**32, 2**62, 2**63 - 1, -(2**63))


@pytest.fixture(scope="module", autouse=True)
def _bounded() -> Iterator[None]:
    """A decoder that would take gigabytes fails here instead of taking them."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (now + (3 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def told_to_the_client() -> Iterator[None]:
    """Nothing, or an error that says it was the client's fault."""
    try:
        yield
    except RefusedError as error:
        status = refusal(error).status
    else:
        return
    assert 400 <= status < 500


named = contextlib.suppress(HoldfastError)
"""Nothing, or an error of ours."""


@st.composite
def changed(draw: st.DrawFn, valid: bytes) -> bytes:
    """Bytes that were valid before some were changed."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(("set", "number", "cut", "end", "double", "insert")))
        if kind == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif kind == "number":
            size = draw(st.sampled_from((2, 4, 8)))
            number = draw(st.sampled_from(HURTING)) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, "little")
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "end":
            del data[at:]
        elif kind == "double":
            data[at:at] = data[at : at + draw(st.integers(1, 200))]
        else:
            data[at:at] = draw(st.binary(max_size=20))
    return bytes(data)


ODD = st.sampled_from(
    (
        None,
        True,
        -1,
        0,
        1.5,
        float("nan"),
        2**64,
        2**70,
        -(2**70),
        "",
        "x",
        "../../x",
        "/x",
        "\0",
        [],
        [None],
        {},
        {"x": 1},
    )
)


@st.composite
def changed_json(draw: st.DrawFn, valid: Any) -> Any:
    """A JSON value of which one or two parts were replaced or removed."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(value))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        if draw(st.booleans()) and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = copy.deepcopy(draw(ODD))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


def stream(frame: pl.DataFrame, **settings: Any) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc_stream(sink, **settings)
    return sink.getvalue()


def file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


BODIES: list[tuple[BodyKind, bytes]] = [
    ("ndjson", FRAME.with_columns(pl.col("list").list.drop_nulls()).write_ndjson().encode()),
    ("csv", FRAME.select(FLAT.names()).write_csv().encode()),
    ("csv-no-header", FRAME.select(FLAT.names()).write_csv(include_header=False).encode()),
    ("arrow-stream", stream(FRAME)),
    ("arrow-stream", stream(FRAME, compat_level=pl.CompatLevel.oldest(), compression="zstd")),
    ("arrow-stream", stream(FRAME.cast({"name": pl.Categorical}), compression="lz4")),
    ("arrow-file", file(FRAME.to_arrow())),
]


# what clients send


@pytest.mark.parametrize("number", range(len(BODIES)))
@given(st.data())
@examples(60)
def test_bodies(number: int, data: st.DataObject) -> None:
    kind, valid = BODIES[number]
    source = FLAT_SOURCE if kind.startswith("csv") else SOURCE
    held: list[int] = []
    with told_to_the_client():
        decoded = decode(kind, data.draw(changed(valid)), source, held.append)
        assert decoded.frame.schema == source.schema
        assert decoded.frame.estimated_size() <= sum(held) + 4096
        decoded.frame.write_ipc_stream(io.BytesIO())
    assert sum(held) <= 8 * source.max_body


@given(st.data(), st.sampled_from(("gzip", "zstd")))
@examples(60)
def test_packed_bodies(data: st.DataObject, encoding: Any) -> None:
    plain = BODIES[0][1] * 20
    packed = gzip.compress(plain) if encoding == "gzip" else pa.compress(plain, "zstd", asbytes=True)
    with told_to_the_client():
        assert len(unpack(Media("ndjson", encoding), bytearray(data.draw(changed(packed))), 100_000)) <= 100_000


@given(st.dictionaries(st.sampled_from(("content-type", "content-encoding")), st.text(max_size=60)))
@examples(60)
def test_headers(headers: dict[str, str]) -> None:
    with told_to_the_client():
        media_of(headers)


LINE_PARSERS: list[LineParser] = [
    NdjsonParser(SCHEMA),
    CsvParser(CsvFormat(has_header=False), tuple(FLAT), FLAT),
    TextParser(pl.Schema({"text": pl.String()})),
]


@pytest.mark.parametrize("parser", LINE_PARSERS, ids=["ndjson", "csv", "text"])
@given(st.data())
@examples(100)
def test_lines(parser: LineParser, data: st.DataObject) -> None:
    valid = BODIES[0][1] if isinstance(parser, NdjsonParser) else BODIES[2][1]
    block = data.draw(st.one_of(changed(valid), st.binary(max_size=300))) + b"\n"
    taken = 0
    for _, part, rows in sorted_blocks(block, parser):
        lines = [line + b"\n" for line in part.split(b"\n")[:-1]]
        blank = sum(parser.is_blank(line) for line in lines)
        assert rows.frame.height + len(rows.bad) + blank == len(lines)
        taken += len(part)
    assert taken == len(block)


def _flight_messages() -> list[bytes]:
    """The messages of a call, each as a FlightData."""
    found = []
    reader = pa.ipc.MessageReader.open_stream(stream(FRAME, compression="zstd"))
    for message in reader:
        parts = [(1, b"\x08\x01\x1a\x06events"), (2, message.metadata.to_pybytes()), (3, b'{"batch": "a"}')]
        if message.body is not None and message.body.size:
            parts.append((1000, message.body.to_pybytes()))
        found.append(b"".join(_varint(number << 3 | 2) + _varint(len(part)) + part for number, part in parts))
    return found


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


FLIGHT = _flight_messages()


@given(st.data())
@examples(150)
def test_flight_messages(data: st.DataObject) -> None:
    feed = ArrowFeed(SCHEMA)
    place = data.draw(st.integers(0, len(FLIGHT) - 1))
    with told_to_the_client(), contextlib.suppress(pa.ArrowInvalid):
        for number, valid in enumerate(FLIGHT):
            found = FlightData.parse(data.draw(changed(valid)) if number == place else valid)
            asked(found.descriptor)
            batch_of(found.application)
            message, weight = feed.add(found)
            if weight > 4_000_000:
                return
            if message.kind == "batch":
                feed.unpack().validate(full=True)


# files of the input


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@given(st.data())
@examples(60)
def test_input_files(kind: str, data: st.DataObject) -> None:
    if kind == "arrow":
        valid, format = file(FRAME.to_arrow()), ArrowFormat()
    else:
        sink = io.BytesIO()
        pq.write_table(FRAME.to_arrow(), sink)
        valid, format = sink.getvalue(), ParquetFormat()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "file"
        path.write_bytes(data.draw(changed(valid)))
        with named:
            extent = format.extent(path)
            for rows in format.read(path, extent.start, min(extent.stop, 1000), SCHEMA, SourceNeed(SCHEMA.names())):
                rows.frame.write_ipc_stream(io.BytesIO())


# what the store holds

UNIT = PUnit("p/state/0-a.arrow", 4, 100, "0123456789abcdef")
PIECE = Piece("panes", UNIT, FULL_INTERVAL, Interval(0, 1 << 63), -5, 7)
MANIFEST = Manifest(FULL_INTERVAL, (PIECE, PIECE))
EXTENT = LogExtent((LogMark(3, 10, 20, {1: 2}), LogMark(4, 1, 2, {})), 4)
RECORD = EpochRecord(
    positions={"in": {"at": 5}},
    done={"in": False},
    greatest={"in": 77},
    routing={"w": Routing.even(2)},
    state={"w": (MANIFEST, MANIFEST)},
    footings={"w": Footing("s", "n", EXTENT)},
)
ENTRY = {
    "units": [{**asdict(UNIT), "before": 3}],
    "after": 9,
    "ended": False,
    "lineage": {},
    "control": {"w": {"epoch": 1, "head": {}, "units": [asdict(UNIT)]}},
}
PLAN = EpochPlan(
    {"in": ((Slice(1, 5, {"at": 2}),), ())},
    {"in": {"at": 5}},
    {"in": False},
    (2, 3),
    {"w": Routing.even(3)},
    now=1.5,
)
ORDER = FootprintOrder("root", "s", True, older=(OlderBatch(1, UNIT, {0: 3}),))
HAND_OVER = RECORD.handover(PLAN, "volatile", {"w": ORDER})
LOAD = KeyLoad(Interval(0, 100), 3, (1, 2), (HeavyKey(5, 2.0, "k"),))
COMMIT = TaskCommit(
    host="h",
    stage=1,
    task=0,
    read={"in": 3},
    receipts={"out": ({"rows": 3},)},
    streamed={"kept": (StreamReceipt((0, 1, 0, 0), UNIT),)},
    digest={"out": OutputDigest(3, 1 << 63, {"x": (1.0, 2.0)}, {"x": 0.5})},
    state={"w": MANIFEST},
    footprints={"w": FootprintsLeft(UNIT, "p", {1: 2}, (WindowMove(1, 2, 3, 4),))},
    work={"w": PartitionWork(0.1, 3, LOAD)},
)
FAILED = SentError.of(TakenBeforeError("broke", cure="mend", epoch=3, batches={"a": TakenBatch(1, 2, 3)}))
HEADS: list[Any] = [
    DataHead(1, 0, (0, 1, 2, 3)),
    TimesHead(0, {"in": 5}),
    RowsHead("out", (0, 1, 2), 3),
    COMMIT,
    FAILED,
]
STORED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "manifest": (json.loads(MANIFEST_FORM.encode(MANIFEST)), lambda value: MANIFEST_FORM.decode(json.dumps(value))),
    "record": (json.loads(RECORD.encode()), lambda value: EpochRecord.decode(json.dumps(value))),
    "plan": (json.loads(PLAN.encode()), lambda value: EpochPlan.decode(json.dumps(value))),
    "hand-over": (json.loads(HAND_OVER.encode()), lambda value: HandOver.decode(json.dumps(value))),
    "entry": (ENTRY, lambda value: StreamEntry.of(Entry(1, 0, 4, 100, json.dumps(value), 0.0))),
}


@pytest.mark.parametrize("name", STORED)
@given(st.data())
@examples(100)
def test_stored_json(name: str, data: st.DataObject) -> None:
    valid, read = STORED[name]
    read(json.loads(json.dumps(valid)))
    value = data.draw(st.one_of(changed_json(json.loads(json.dumps(valid))), ODD))
    try:
        found = read(value)
    except HoldfastError:
        return
    if isinstance(found, EpochRecord):
        assert not any(name.startswith("/") or ".." in name for name in found.files())
        found.state_bytes()


@pytest.mark.parametrize("what", ["plan", "record", "shape", "entry"])
@pytest.mark.parametrize("version", [5, 6])
@examples(20)
@given(data=st.data())
def test_sealed_texts(what: str, version: int, data: st.DataObject) -> None:
    """Of plans, records, shapes and entries in the meta store: what is read is what was written."""
    value, place = {"slices": {"in": [[{"base": 1, "where": {"at": 2}}]]}, "generation": 3}, SealedPlace(what, "p", 7)
    written = place.sealed(json.dumps(value)) if version == 6 else json.dumps(value)
    text = data.draw(changed(written.encode())).decode(errors="replace")
    with contextlib.suppress(CorruptRecordError):
        found = json.loads(place.opened(text, version))
        assert version == 5 or found == value


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
@given(st.data())
@examples(40)
def test_messages_between_stages(head: Any, data: st.DataObject) -> None:
    [batch] = messages.pack([Message(3, head, b"rows")])
    assert list(messages.unpack([batch])) == [Message(3, head, b"rows")]
    damaged = data.draw(changed(batch.column(1)[0].as_py()))
    columns = [batch.column(0), pa.array([damaged], pa.binary()), batch.column(2)]
    with named:
        messages.raise_errors(messages.unpack([pa.RecordBatch.from_arrays(columns, schema=batch.schema)]))


@pytest.mark.parametrize("value", [RECORD, PLAN, HAND_OVER], ids=lambda value: type(value).__name__)
def test_what_is_said_about_an_epoch_is_read_as_it_was_written(value: Any) -> None:
    assert type(value).decode(value.encode()) == value
    assert value.encode().isascii()


@pytest.mark.parametrize("value", [RECORD, PLAN, HAND_OVER], ids=lambda value: type(value).__name__)
def test_a_version_of_tomorrow_is_refused(value: Any) -> None:
    newer = json.dumps({**json.loads(value.encode()), "version": 99})
    with pytest.raises(UnknownVersionError, match="has version 99"):
        type(value).decode(newer)


def test_names_that_are_no_unicode_and_numbers_that_are_none_are_read() -> None:
    """File names may be any bytes, and Python's own JSON has written NaN."""
    odd = replace(PLAN, positions={"in": {"file": "a\udcff\u00e4"}})
    assert EpochPlan.decode(odd.encode()) == odd
    assert math.isnan(EpochPlan.decode(PLAN.encode().replace("1.5", "NaN")).now or 0.0)


def test_a_name_that_leads_out_of_the_store_is_refused() -> None:
    for name in ("../x", "/etc/passwd", "a/../../b", "", None):
        with pytest.raises(CorruptRecordError):
            JsonForm(PUnit, "a p-unit").decode(json.dumps({**asdict(UNIT), "name": name}))


@pytest.mark.parametrize("seal", [False, True], ids=["as it is", "with the right checksum"])
@given(st.data())
@examples(60)
def test_punits(seal: bool, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as place:
        store = DirectoryStore(Path(place), False)
        unit = write_punit(store, "a.arrow", FRAME.select(pl.exclude("list")))
        found = data.draw(changed(store.path("a.arrow").read_bytes()))
        store.path("a.arrow").write_bytes(found)
        if seal:
            unit = PUnit("a.arrow", unit.rows, len(found), xxhash.xxh3_64_hexdigest(found))
        for read in (read_punit, read_unit):
            with named:
                read(store, unit)


@given(st.data())
@examples(150)
def test_encoded_rows(data: st.DataObject) -> None:
    frame = pl.concat([FRAME] * 50).with_columns(pl.lit(None, pl.Int32).alias("none"), pl.int_range(200).alias("n"))
    table = encode_frame(frame).table
    [key] = table.schema.metadata
    described = data.draw(changed_json(json.loads(table.schema.metadata[key])))
    with named:
        decode_frame(table.replace_schema_metadata({key: json.dumps(described).encode()}))


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
@given(st.data())
@examples(40)
def test_exported_state(ending: str, data: st.DataObject) -> None:
    about = json.dumps({"version": 1, "operator": "w", "shape": {}}).encode()
    table = FRAME.to_arrow().replace_schema_metadata({b"holdfast": about})
    sink = io.BytesIO()
    if ending == "parquet":
        pq.write_table(table, sink)
    else:
        sink.write(file(table))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / f"state.{ending}"
        path.write_bytes(data.draw(changed(sink.getvalue())))
        with named:
            _read(path, "w")


@given(st.data())
@examples(60)
def test_input_of_a_standby(data: st.DataObject) -> None:
    valid = encode_chunks([Chunk(FRAME, 3, True, FRAME.select("name"), Marks(None, 5)), Chunk(FRAME)])
    with named:
        decode_chunks(data.draw(changed(valid)))


@given(st.one_of(st.text(max_size=50), st.integers(1, 200_000).map(lambda depth: "[" * depth)))
@examples(60)
def test_descriptors(text: str) -> None:
    with named:
        parse(text, "it")
