"""p-units: what is read is what was written, or nothing is read at all."""

from __future__ import annotations

from datetime import datetime

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from holdfast.errors import CorruptPUnitError, UnknownVersionError
from holdfast.pstream import PUnit, punit, read_punit, write_punit
from holdfast.store import DirectoryStore, Private

FRAME = pl.DataFrame(
    {
        "n": [1, None, -(2**63)],
        "x": [0.5, float("inf"), None],
        "s": ["", None, "日本語"],
        "t": [datetime(2024, 2, 29), None, datetime(1969, 1, 1)],
        "many": [[1, 2], [], None],
        "box": [{"a": 1, "b": "x"}, {"a": None, "b": None}, None],
        "flag": [True, False, None],
        "raw": [b"\x00", b"", None],
    }
)


@pytest.fixture
def store(tmp_path):
    punit.close_all()
    return DirectoryStore(tmp_path, sync=False)


def test_rows_come_back_as_they_were(store):
    written = write_punit(store, "a/one.arrow", FRAME)
    assert_frame_equal(read_punit(store, written), FRAME)
    assert (written.rows, written.bytes) == (3, store.existing("a/one.arrow").stat().st_size)


def test_a_p_unit_without_rows_keeps_its_columns(store):
    written = write_punit(store, "none.arrow", FRAME.clear())
    assert_frame_equal(read_punit(store, written), FRAME.clear())


def test_a_flipped_bit_anywhere_is_noticed(store):
    written = write_punit(store, "one.arrow", FRAME)
    path = store.existing("one.arrow")
    sound = path.read_bytes()
    step = max(1, len(sound) // 200)
    for at in [*range(0, len(sound), step), len(sound) - 1]:
        path.write_bytes(sound[:at] + bytes([sound[at] ^ (1 << at % 8)]) + sound[at + 1 :])
        punit.close_all()
        with pytest.raises(CorruptPUnitError, match="checksum"):
            read_punit(store, written)
    path.write_bytes(sound)
    assert_frame_equal(read_punit(store, written), FRAME)


@pytest.mark.parametrize("left", [0, 1, 8, 100, -1])
def test_a_truncated_file_is_noticed(store, left):
    written = write_punit(store, "one.arrow", FRAME)
    path = store.existing("one.arrow")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptPUnitError) as caught:
        read_punit(store, written)
    assert caught.value.cure


def test_a_missing_file_is_noticed(store):
    written = write_punit(store, "one.arrow", FRAME)
    store.remove(["one.arrow"], Private("the test's own"))
    with pytest.raises(CorruptPUnitError, match="missing") as caught:
        read_punit(store, written)
    assert caught.value.cure


def test_a_file_swapped_for_another_is_noticed(store):
    one = write_punit(store, "one.arrow", FRAME)
    write_punit(store, "two.arrow", FRAME.reverse())
    store.existing("one.arrow").write_bytes(store.existing("two.arrow").read_bytes())
    with pytest.raises(CorruptPUnitError):
        read_punit(store, one)


@pytest.mark.parametrize("version", [b"2", b"0", None])
def test_an_unknown_version_is_refused(store, version):
    table = FRAME.to_arrow()
    metadata = {} if version is None else {b"holdfast.punit": version}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    store.write("strange.arrow", memoryview(data))
    with pytest.raises(UnknownVersionError) as caught:
        read_punit(store, PUnit("strange.arrow", 3, data.size, punit._checksum(data)))
    assert caught.value.cure


def test_a_failed_read_is_not_remembered(store):
    written = write_punit(store, "one.arrow", FRAME)
    path = store.existing("one.arrow")
    sound = path.read_bytes()
    path.write_bytes(b"broken")
    with pytest.raises(CorruptPUnitError):
        read_punit(store, written)
    path.write_bytes(sound)
    assert_frame_equal(read_punit(store, written), FRAME)


def test_few_files_are_kept_open(store):
    units = [write_punit(store, f"{i}.arrow", pl.DataFrame({"i": [i]})) for i in range(punit._MOST_OPEN + 20)]
    assert [read_punit(store, unit)["i"][0] for unit in units] == list(range(len(units)))
    assert len(punit._opened) == punit._MOST_OPEN
