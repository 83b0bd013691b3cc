"""What is not for others: passwords in URLs, directories that can be guessed, code in files, secrets in arguments."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path
from typing import Any

import click
import polars as pl
import psutil
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.cli.shared_options import CONF_VARIABLE, META_VARIABLE, conf_option
from holdfast.connect.base import Chunk, Marks
from holdfast.database_url import parse_url, shown_url
from holdfast.engine.options import RunOptions
from holdfast.errors import CorruptFileError, DeclarationError, UnsafeDirectoryError, UntrustedFileError
from holdfast.meta import MetaStore
from holdfast.plan.program import compile_program
from holdfast.replica.supervisor import HostProcess
from holdfast.store import default_volatile, private_directory, tiers
from holdfast.task.inbox import Inbox, decode_chunks, encode_chunks
from holdfast.task.work_directory import WorkDirectory, load_program

PASSWORD = "hunter2"
MALFORMED = [
    f"postgresql//ada:{PASSWORD}@db/x",
    f"postgresql://ada:{PASSWORD}@db:port/x",
    f"ada:{PASSWORD}@db",
    PASSWORD,
]


@pytest.mark.parametrize("url", [*MALFORMED, f"nosuch://ada:{PASSWORD}@db/x"])
def test_an_url_that_cannot_be_used_is_not_repeated(url: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        MetaStore(url)
    assert PASSWORD not in str(refused.value)
    assert refused.value.__suppress_context__ or PASSWORD not in str(refused.value.__context__)


@pytest.mark.parametrize("url", MALFORMED)
def test_the_url_of_a_sink_is_not_repeated(url: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        hf.sink.database(url, "t")
    assert PASSWORD not in str(refused.value)
    assert refused.value.__suppress_context__


def test_a_sink_shows_no_password() -> None:
    sink = hf.sink.database(f"postgresql://ada:{PASSWORD}@db/x?sslpassword={PASSWORD}", "t")
    assert PASSWORD not in repr(sink)
    assert PASSWORD not in sink.describe()
    assert "ada" in sink.describe()


@given(st.text("abcXYZ:@/?#%&=+ é", min_size=1).map(lambda text: f"<{text}>"))
def test_no_password_is_shown_whatever_its_characters(password: str) -> None:
    made = sa.URL.create("postgresql", "ada", password, "db", 5432, "x", {"password": password})
    found = parse_url(made.render_as_string(hide_password=False), "it", "e.g.")
    assert found.password == password
    assert "<" not in shown_url(found)
    assert "%3C" not in shown_url(found)


def test_the_url_of_the_meta_store_is_no_argument_of_a_host(tmp_path: Path) -> None:
    way = f"postgresql://ada:{PASSWORD}@127.0.0.1:1/x?timeout=1"
    host = HostProcess("a", tmp_path, ["--store", str(tmp_path)], {META_VARIABLE: way})
    host.start()
    try:
        assert host.process is not None
        seen = psutil.Process(host.process.pid)
        assert PASSWORD not in " ".join(seen.cmdline())
        assert host.process.wait(120) != 0
    finally:
        host.kill()
    log = next(tmp_path.rglob("a.log")).read_text()
    assert "cannot reach the meta store" in log  # it was told the URL
    assert PASSWORD not in log
    assert PASSWORD not in repr(host)


# directories


def test_a_directory_of_another_user_or_open_to_others_is_refused(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    opened.chmod(0o777)
    with pytest.raises(UnsafeDirectoryError, match="written to by other users"):
        private_directory(opened)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(UnsafeDirectoryError, match="is not a directory"):
        private_directory(link)
    if os.getuid() == 0:
        strange = tmp_path / "strange"
        strange.mkdir(mode=0o700)
        os.chown(strange, 12345, 12345)
        with pytest.raises(UnsafeDirectoryError, match="belongs to another user"):
            private_directory(strange)
    readable = tmp_path / "readable"
    readable.mkdir(mode=0o755)
    assert stat.S_IMODE(private_directory(readable).stat().st_mode) == 0o700


def test_the_default_of_the_volatile_tier_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "volatile_parent", lambda: tmp_path)
    assert stat.S_IMODE(default_volatile().stat().st_mode) == 0o700
    default_volatile().chmod(0o777)
    with pytest.raises(UnsafeDirectoryError):
        RunOptions(store=tmp_path / "store").tiers("p", "identity")


def test_a_volatile_tier_that_others_can_write_to_is_refused_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v").chmod(0o777)
    with pytest.raises(UnsafeDirectoryError):
        RunOptions(store=tmp_path / "store", volatile=tmp_path / "v").tiers("p", "identity")


def test_the_database_of_a_store_is_its_owners_alone_unless_the_directory_is_shared(tmp_path: Path) -> None:
    for name, mode, wanted in (("readable", 0o755, 0o600), ("shared", 0o775, 0o644)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        MetaStore(tmp_path / name).close()
        assert stat.S_IMODE((tmp_path / name / "meta.db").stat().st_mode) == wanted


def test_settings_of_spark_reach_hosts_without_being_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONF_VARIABLE, '{"spark.authenticate.secret": "s3cret", "a": "1"}')
    seen: list[dict[str, str]] = []
    command = click.command()(conf_option(lambda conf: seen.append(conf)))
    assert CliRunner().invoke(command, ["--conf", "a=2"]).exit_code == 0
    assert seen == [{"spark.authenticate.secret": "s3cret", "a": "2"}]


def test_a_new_store_is_its_owners_alone_and_an_old_one_stays_as_it_was_made(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        MetaStore(tmp_path / "new").close()
        (tmp_path / "shared").mkdir(mode=0o775)
        (tmp_path / "shared").chmod(0o775)
        MetaStore(tmp_path / "shared").close()
        RunOptions(store=tmp_path / "other", volatile=tmp_path / "v", backups=(tmp_path / "b",)).tiers("p", "identity")
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "shared", "other", "b")}
    assert modes == {"new": 0o700, "shared": 0o775, "other": 0o700, "b": 0o700}


# code in files


class Exploit:
    def __reduce__(self) -> Any:
        return (os.mkdir, (os.environ["EXPLOITED"],))


@pytest.fixture
def exploited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXPLOITED", str(tmp_path / "exploited"))
    return tmp_path / "exploited"


def test_a_program_that_the_driver_did_not_write_is_not_run(tmp_path: Path, exploited: Path) -> None:
    pipeline = hf.Pipeline("p")
    pipeline.source("in", hf.source.memory(pl.DataFrame({"n": [1]}))).sink("out", hf.sink.collect())
    work = WorkDirectory(tmp_path, "run")
    work.write_program(compile_program(pipeline))
    sealed = work.program_path.read_bytes()
    head = sealed[32:].partition(b"\n")[0]
    for planted in (pickle.dumps(Exploit()), sealed[:32] + head + b"\n" + pickle.dumps(Exploit())):
        work.program_path.write_bytes(planted)
        with pytest.raises(UntrustedFileError):
            load_program(work)
    work.program_path.write_bytes(sealed)
    assert load_program(work).sources
    assert not exploited.exists()


def test_input_that_a_standby_received_holds_no_code(tmp_path: Path, exploited: Path) -> None:
    inbox = Inbox(tmp_path / "inbox")
    planted = tmp_path / "inbox" / "1.0" / "in-0-0"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(pickle.dumps([Exploit()]))
    with pytest.raises(CorruptFileError):
        inbox.chunks(1, "in", 0, 0)
    assert not exploited.exists()


def test_chunks_come_back_as_they_were() -> None:
    frame = pl.DataFrame({"t": pl.Series([1, 2], dtype=pl.Datetime("us")), "l": [["a"], None]})
    chunks = [Chunk(frame, 3, True, pl.DataFrame({"source": ["s"]}), Marks(None, 5)), Chunk(frame.clear())]
    for found, sent in zip(decode_chunks(encode_chunks(chunks)), chunks, strict=True):
        assert found.frame.equals(sent.frame)
        assert found.frame.schema == sent.frame.schema
        assert (found.shift, found.ordered, found.marks) == (sent.shift, sent.ordered, sent.marks)
        assert (found.bad is None) == (sent.bad is None)
        assert found.bad is None or sent.bad is None or found.bad.equals(sent.bad)
