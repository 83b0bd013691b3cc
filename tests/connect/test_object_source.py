"""Files in an object store as a source: the same rows as from local files, once each, whatever the server does."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path

import polars as pl
import pytest
from buckets import TestBucket
from drain import drain
from file_sinks import OWN

from holdfast.connect.formats.format_names import FormatName
from holdfast.connect.lookups.source_lookup import files as lookup_files
from holdfast.connect.sources.files import files
from holdfast.errors import BadRowError, CorruptFileError, DeclarationError, HoldfastError, ObjectStoreError
from holdfast_lab.chaos.s3_server import FaultKind, S3Fault

ROWS = pl.DataFrame(
    {"k": range(1_000), "s": [f"text {n % 7}" for n in range(1_000)], "x": [n / 8 for n in range(1_000)]}
)


def encoded(rows: pl.DataFrame, form: FormatName) -> bytes:
    made = io.BytesIO()
    match form:
        case "parquet":
            rows.write_parquet(made, row_group_size=64)
        case "csv":
            rows.write_csv(made)
        case "ndjson":
            rows.write_ndjson(made)
        case "arrow":
            rows.write_ipc(made, record_batch_size=64)
    return made.getvalue()


def put_all(bucket: TestBucket, form: FormatName, prefix: str = "in", parts: int = 2) -> None:
    step = ROWS.height // parts
    for part in range(parts):
        bucket.put(f"{prefix}/part-{part}.{form}", encoded(ROWS.slice(part * step, step), form))


@pytest.mark.parametrize("form", ["parquet", "csv", "ndjson", "arrow"])
def test_objects_give_the_rows_that_local_files_give(bucket: TestBucket, form: FormatName, tmp_path: Path) -> None:
    put_all(bucket, form)
    for key in bucket.keys("in"):
        (tmp_path / Path(key).name).write_bytes(bucket.bucket.get(key) or b"")
    remote = files(bucket.url("in"), storage_options=bucket.options)
    local = files(tmp_path)
    assert remote.schema == local.schema == ROWS.schema
    found, _ = drain(remote, rows=400, pieces=3)
    assert found.equals(drain(local, rows=400, pieces=3)[0])
    assert found.equals(ROWS)


def test_of_a_parquet_object_only_what_is_needed_is_fetched(bucket: TestBucket) -> None:
    wide = pl.DataFrame({f"c{n}": random.Random(n).choices(range(1 << 60), k=20_000) for n in range(20)})
    bucket.put_parquet("in/wide.parquet", wide, row_group=20_000)
    size = bucket.bucket.head("in/wide.parquet")
    assert size is not None
    assert size.size > 3_000_000
    source = files(bucket.url("in/wide.parquet"), schema={"c3": pl.Int64}, storage_options=bucket.options)
    read: list[int] = []
    ranges = type(bucket.bucket).read_ranges

    def counted(self: object, key: str, asked: list[tuple[int, int]]) -> object:
        read.extend(stop - start for start, stop in asked)
        return ranges(bucket.bucket, key, asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(bucket.bucket), "read_ranges", counted)
        found, _ = drain(source, rows=100_000)
    assert found["c3"].equals(wide["c3"])
    assert 0 < sum(read) < 2 * size.size / 10  # it is read twice by drain


def test_a_glob_pattern_chooses_objects_as_it_chooses_files(bucket: TestBucket) -> None:
    keys = ["a.csv", "b.txt", "d=1/a.csv", "d=1/e/b.csv", "d=2/c.csv", "_hidden/a.csv", "d=1/.a.csv", "d=2/a.csv.tmp"]
    for key in keys:
        bucket.put(f"in/{key}", b"k\n1\n")
    expected = {
        "in": ["a.csv", "b.txt"],
        "in/*.csv": ["a.csv"],
        "in/*/*.csv": ["d=1/a.csv", "d=2/c.csv"],
        "in/**/*.csv": ["a.csv", "d=1/a.csv", "d=1/e/b.csv", "d=2/c.csv"],
        "in/d=1/**/?.csv": ["a.csv", "e/b.csv"],
        "in/d=[2-9]/*": ["d=2/c.csv"],
    }
    for pattern, names in expected.items():
        source = files(bucket.url(pattern), format="csv", schema={"k": pl.Int64}, storage_options=bucket.options)
        found = [
            file.name.removeprefix("d=1/") if "d=1/**" in pattern else file.name for file in source.files.present()
        ]
        assert found == names, pattern


def test_names_are_taken_as_they_are(bucket: TestBucket) -> None:
    for name in ("a b=1%.csv", "ä+&.csv", "a%20b.csv"):
        bucket.put(f"in/{name}", b"k\n1\n")
    found, _ = drain(files(bucket.url("in"), storage_options=bucket.options))
    assert found.height == 3
    one = files([bucket.url("in/a%20b.csv"), bucket.url("in/ä+&.csv")], storage_options=bucket.options)
    assert drain(one)[0].height == 2


def test_a_growing_prefix_gives_every_object_once(bucket: TestBucket) -> None:
    source = files(bucket.url("in"), format="csv", schema={"k": pl.Int64}, grow=True, storage_options=bucket.options)
    assert "no file" in source.notices(source.start())[0]
    bucket.put("in/m.csv", b"k\n1\n")
    first, position = drain(source)
    assert first["k"].to_list() == [1]
    bucket.put("in/z.csv", b"k\n2\n")
    bucket.put("in/a.csv", b"k\n3\n")  # sorts before those that were read
    second, position = drain(source, position=position)
    assert sorted(second["k"].to_list()) == [2, 3]
    assert drain(source, position=position)[0].height == 0


def test_an_object_that_was_put_again_after_it_was_planned_is_refused(bucket: TestBucket) -> None:
    bucket.put("in/a.csv", b"k\n1\n")
    source = files(bucket.url("in"), storage_options=bucket.options)
    take = source.take(source.start(), 10, 1)
    bucket.put("in/a.csv", b"k\n2\n")  # as large, and within the same second
    with pytest.raises(CorruptFileError, match="changed after it was planned"):
        list(source.read(take.slices[0]))
    bucket.bucket.delete(["in/a.csv"], OWN)
    with pytest.raises(CorruptFileError, match="vanished"):
        list(source.read(take.slices[0]))


def test_a_reader_never_mixes_two_objects(bucket: TestBucket) -> None:
    """The object is replaced between two requests of one reader."""
    bucket.put("in/a.csv", b"k\n" + b"1\n" * 200_000)
    source = files(bucket.url("in/a.csv"), storage_options=bucket.options)
    with source.files.path("a.csv").open("rb") as file:
        file.read(10)
        bucket.put("in/a.csv", b"k\n" + b"2\n" * 200_000)
        file.seek(300_000)
        with pytest.raises(CorruptFileError, match="overwritten while it was being read"):
            file.read(10)


@pytest.mark.parametrize(
    ("form", "kind"), [("parquet", "503"), ("parquet", "torn"), ("ndjson", "lost"), ("csv", "500")]
)
def test_requests_that_fail_for_the_moment_are_made_again(
    bucket: TestBucket, kind: FaultKind, form: FormatName
) -> None:
    put_all(bucket, form)
    source = files(bucket.url("in"), storage_options=bucket.options)
    bucket.server.faults += [S3Fault(kind, method, bucket.name, times=2) for method in ("GET", "HEAD")]
    found, _ = drain(source, rows=300, pieces=2)
    assert found.equals(ROWS)
    assert all(fault.times == 0 for fault in bucket.server.faults)


def test_a_late_answer_is_given_up_and_asked_for_again(bucket: TestBucket) -> None:
    put_all(bucket, "csv", parts=1)
    source = files(bucket.url("in"), storage_options=bucket.server.options(timeout="300ms"))
    bucket.server.faults.append(S3Fault("late", "GET", "part-0", seconds=2.0))
    assert drain(source)[0].equals(ROWS)


def test_a_server_that_stays_down_ends_with_an_error_that_says_so(bucket: TestBucket) -> None:
    put_all(bucket, "csv", parts=1)
    source = files(bucket.url("in"), storage_options=bucket.server.options(max_retries=1))
    take = source.take(source.start(), 10_000, 1)
    bucket.server.faults.append(S3Fault("503", "", bucket.name, times=1_000))
    with pytest.raises(ObjectStoreError, match=r"does not answer properly.*: 503.*\n.*start again"):
        list(source.read(take.slices[0]))


def test_a_bad_row_is_named_with_its_object(bucket: TestBucket) -> None:
    bucket.put("in/a.csv", b"k\n1\nx\n")
    source = files(bucket.url("in"), schema={"k": pl.Int64}, storage_options=bucket.options)
    with pytest.raises(BadRowError, match=rf"s3://{bucket.name}/in/a.csv, line 3"):
        drain(source)


def test_a_torn_parquet_object_is_refused(bucket: TestBucket) -> None:
    whole = encoded(ROWS, "parquet")
    for content in (whole[:-20], whole[: len(whole) // 2], b"", b"PAR1"):
        bucket.put("in/a.parquet", content)
        with pytest.raises(CorruptFileError, match=r"in/a\.parquet"):
            drain(files(bucket.url("in"), schema=ROWS.schema, storage_options=bucket.options))


class TestSettings:
    """What is wrong is said with what to do about it, and no secret is told."""

    def refused(self, bucket: TestBucket, **more: str | bool) -> str:
        with pytest.raises(HoldfastError) as caught:
            files(bucket.url("in"), storage_options=bucket.server.options(max_retries=0, **more))
        return str(caught.value)

    def test_no_such_bucket(self, bucket: TestBucket) -> None:
        with pytest.raises(ObjectStoreError, match=r"no bucket 'nowhere' at http.*\n.*cure: correct the address"):
            files("s3://nowhere/in", storage_options=bucket.options)

    def test_no_credentials(self, bucket: TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        # Nobody listens where a machine of Amazon's would have credentials for its programs.
        text = self.refused(bucket, metadata_endpoint="http://127.0.0.1:1/latest/api/token")
        assert "there are no credentials" in text
        assert "AWS_ACCESS_KEY_ID" in text

    def test_another_region(self, bucket: TestBucket) -> None:
        bucket.server.faults.append(S3Fault("region", "GET", bucket.name))
        text = self.refused(bucket)
        assert "is in another region" in text
        assert "it is 'eu-west-1'" in text

    def test_refused_credentials(self, bucket: TestBucket) -> None:
        bucket.server.faults.append(S3Fault("denied", "GET", bucket.name))
        assert "access to the bucket" in self.refused(bucket)

    def test_nobody_listens(self, bucket: TestBucket) -> None:
        assert "does not answer" in self.refused(bucket, endpoint="http://127.0.0.1:1")

    def test_a_secret_is_given_by_reference(self, bucket: TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
        text = self.refused(bucket, secret_access_key="very-secret")
        assert "env:NAME" in text
        assert "very-secret" not in text
        assert "MISSING" in self.refused(bucket, secret_access_key="env:MISSING")
        monkeypatch.setenv("MY_SECRET", "very-secret")
        bucket.put("in/a.csv", b"k\n1\n")
        source = files(bucket.url("in"), storage_options=bucket.server.options(aws_secret_access_key="env:MY_SECRET"))
        assert drain(source)[0].height == 1
        assert b"very-secret" not in pickle.dumps(source)
        assert "very-secret" not in repr(source.files) + source.describe()

    @pytest.mark.parametrize(
        ("path", "options", "says"),
        [
            ("hdfs://host/in", None, "s3://bucket/path"),
            ("s3://bucket/in", {"nonsense": "1"}, "nonsense"),
            ("s3://bucket/in", {"bucket": "other"}, "the address names the bucket"),
            ("s3://user:pass@host/in", None, "cannot be the name of a bucket"),
            ("s3:///in", None, "cannot be the name of a bucket"),
            ("s3://bucket/../in", None, "as it is in the bucket"),
            ("in", {"region": "x"}, "leave them out"),
            (["in", "s3://bucket/in"], None, "objects and files"),
            ("s3://bucket/in", ["region"], "give a dictionary"),
            ("s3://bucket/in", {"timeout": "soon"}, "timeout='soon' is not a duration"),
        ],
    )
    def test_what_cannot_be_is_refused_when_it_is_declared(self, path: object, options: object, says: str) -> None:
        with pytest.raises(DeclarationError, match=says):
            files(path, format="csv", schema={"k": pl.Int64}, storage_options=options)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_objects_are_a_lookup_table_that_is_read_again_when_one_has_changed(
    bucket: TestBucket, form: FormatName
) -> None:
    bucket.put(f"users/one.{form}", encoded(ROWS.head(3), form))
    table = lookup_files(bucket.url("users"), storage_options=bucket.options)
    first = table.mark()
    assert table.read().equals(ROWS.head(3))
    assert table.mark() == first
    bucket.put(f"users/one.{form}", encoded(ROWS.slice(3, 3), form))
    bucket.put(f"users/two.{form}", encoded(ROWS.slice(6, 1), form))
    assert table.mark() != first
    assert table.read().equals(ROWS.slice(3, 4))
