"""A store keeps its version until somebody upgrades it: readers read it as it is, writers refuse it, and an upgrade has
a backup that is worth its name."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.epoch.record_change import record_of
from holdfast.errors import AlreadyRunningError, CorruptRecordError, OldStoreError, UnknownStateError
from holdfast.formats import STORE_VERSION
from holdfast.meta import Commands, MetaStore, NewEntry, ReplicaMeta, StreamMeta, upgrade
from holdfast.meta.lease_holder import this_process
from holdfast.meta.sql_tables import entries, epochs, leases, metadata, pipelines
from holdfast.meta.versions import version_of
from stored_texts import commit_epoch, plan_epoch, plan_text, save_shape, text
from strategies import FUZZ

FORMATS = Path(__file__).parent.parent / "formats"
OLD = range(1, STORE_VERSION)
Where = Path | str


def database(where: Where) -> sa.Engine:
    url = f"sqlite:///{where / 'meta.db'}" if isinstance(where, Path) else where.replace("://", "+psycopg://")
    return sa.create_engine(url, poolclass=sa.NullPool)


def contents(engine: sa.Engine) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, as they are stored."""
    with engine.connect() as connection:
        names = sorted(name for name in sa.inspect(connection).get_table_names() if name in metadata.tables)
        known = sa.MetaData()
        known.reflect(connection, only=names)
        return {
            name: sorted(tuple(row) for row in connection.execute(sa.select(known.tables[name])))
            for name in names
        }  # fmt: skip


def version(where: Where) -> int:
    with database(where).connect() as connection:
        return version_of(connection)


def old_store(number: int, where: Where, tmp_path: Path) -> Where:
    """The tables and rows that an old version has left, in either kind of database."""
    if isinstance(where, Path):
        shutil.copytree(FORMATS / f"store-{number}", where, dirs_exist_ok=True)
        return where
    shutil.copy(FORMATS / f"store-{number}" / "meta.db", tmp_path / "meta.db")
    old = database(tmp_path)
    tables = [metadata.tables[name] for name in sa.inspect(old).get_table_names()]
    with old.connect() as given, database(where).begin() as made:
        metadata.create_all(made, tables)
        for table in tables:
            rows = [dict(row) for row in given.execute(sa.select(table)).mappings()]
            if rows:
                made.execute(table.insert(), rows)
    return where


@pytest.fixture(params=OLD)
def old(request: pytest.FixtureRequest, where: Where, tmp_path: Path) -> Where:
    if not isinstance(where, Path) and request.param not in (1, STORE_VERSION - 1) and not FUZZ:
        pytest.skip("long: upgrades are the same in every database")
    return old_store(request.param, where, tmp_path)


@pytest.fixture
def last(where: Where, tmp_path: Path) -> Where:
    return old_store(STORE_VERSION - 1, where, tmp_path)


def upgraded(where: Where, tmp_path: Path, now: float = 1e10) -> Path:
    done = upgrade(where, tmp_path / "backups", now=now)
    assert done.after == STORE_VERSION
    assert done.backup is not None
    return done.backup


def test_who_writes_refuses_an_old_store_and_names_the_cure(old: Where) -> None:
    before = contents(database(old))
    with pytest.raises(OldStoreError, match=f"this program writes version {STORE_VERSION}") as refused:
        MetaStore(old)
    assert "holdfast upgrade" in refused.value.cure
    assert contents(database(old)) == before


def test_who_reads_takes_an_old_store_as_it_is(old: Where) -> None:
    before = contents(database(old))
    meta = MetaStore(old, reads_only=True)
    assert meta.pipelines()
    commit = meta.last_commit("kept")
    assert commit is not None
    assert record_of(commit).state
    assert meta.shape("kept") is not None
    streams = StreamMeta(meta)
    for stream in streams.streams():
        assert streams.entries(stream, 0) or streams.state(stream).number
    assert set(ReplicaMeta(meta).rows(["kept"])) <= {"kept"}
    assert ReplicaMeta(meta).deployed() == {}
    with pytest.raises(OldStoreError, match="was opened for reading only"):
        meta.acquire("kept", "me", 1e10, 1.0)
    meta.close()
    assert contents(database(old)) == before


def test_the_database_itself_refuses_what_a_reader_would_write(last: Where) -> None:
    meta = MetaStore(last, reads_only=True)
    with pytest.raises(sa.exc.DBAPIError), meta.reading() as connection:
        connection.execute(leases.update().values(token=99))
    meta.close()


def test_a_reader_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(UnknownStateError, match="there is no store"):
        MetaStore(tmp_path / "none", reads_only=True)
    assert not (tmp_path / "none").exists()


def test_a_reader_refuses_a_table_that_lacks_a_column(last: Where) -> None:
    with database(last).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE epochs DROP COLUMN planned_at")
    with pytest.raises(OldStoreError, match="its table 'epochs' cannot be read"):
        MetaStore(last, reads_only=True)


def test_an_upgrade_keeps_what_was_there(old: Where, tmp_path: Path) -> None:
    reader = MetaStore(old, reads_only=True)
    before = {name: (reader.shape(name), *reader.history(name)) for name in reader.pipelines()}
    held = {s: StreamMeta(reader).entries(s, 0) for s in StreamMeta(reader).streams()}
    reader.close()
    upgraded(old, tmp_path)
    assert version(old) == STORE_VERSION
    meta = MetaStore(old)
    assert {name: (meta.shape(name), *meta.history(name)) for name in meta.pipelines()} == before
    streams = StreamMeta(meta)
    assert {s: streams.entries(s, 0) for s in streams.streams()} == held
    streams.declare("p.kept", "{}")
    with meta.writing() as connection:
        streams.append(connection, "p.kept", [NewEntry(3, 10, "{}", 7)], 1.0)
    Commands(meta).ask("kept", text({"do": "it"}), 1.0)
    lease = meta.acquire("kept", "me", 1e11, 30.0)
    next_epoch = meta.last_epoch("kept") + 1
    plan_epoch(meta, lease, next_epoch, plan_text({"slices": 1}), 1.0)
    assert commit_epoch(meta, lease, next_epoch, text({"done": 1}), 2.0)
    meta.close()


def test_the_backup_of_an_upgrade_is_the_store_as_it_was(old: Where, tmp_path: Path) -> None:
    before, number = contents(database(old)), version(old)
    backup = upgraded(old, tmp_path)
    assert backup.name.startswith(f"meta-{number}-")
    assert backup.stat().st_mode & 0o077 == 0
    assert [path.name for path in backup.parent.iterdir()] == [backup.name], "no draft and no log is left"
    assert contents(sa.create_engine(f"sqlite:///{backup}", poolclass=sa.NullPool)) == before
    restored = tmp_path / "restored"
    restored.mkdir()
    shutil.copy(backup, restored / "meta.db")
    assert version(restored) == number
    upgraded(restored, restored)
    meta = MetaStore(restored)
    assert meta.last_commit("kept") is not None
    meta.close()


def test_an_upgrade_while_somebody_runs_is_refused(last: Where, tmp_path: Path) -> None:
    with database(last).begin() as connection:
        connection.execute(leases.update().where(leases.c.pipeline == "kept").values(expires=50.0, owner="host:1:0"))
    before = contents(database(last))
    with pytest.raises(AlreadyRunningError, match="'kept' is being run by host:1:0"):
        upgrade(last, tmp_path / "backups", now=49.0)
    assert contents(database(last)) == before
    with database(last).begin() as connection:
        host, pid, _ = this_process().rsplit(":", 2)
        dead = f"{host}:{pid}:1.00"  # the number went to another process
        connection.execute(leases.update().where(leases.c.pipeline == "kept").values(owner=dead))
    assert upgrade(last, tmp_path / "backups", now=49.0).backup is not None


def test_who_held_a_lease_before_an_upgrade_is_locked_out(last: Where, tmp_path: Path) -> None:
    with database(last).connect() as connection:
        before = {row.pipeline: row.token for row in connection.execute(sa.select(leases))}
    upgraded(last, tmp_path)
    with database(last).connect() as connection:
        after = {row.pipeline: row.token for row in connection.execute(sa.select(leases))}
    assert after == {pipeline: token + 1 for pipeline, token in before.items()}


def test_an_upgrade_that_fails_changes_nothing(last: Where, tmp_path: Path) -> None:
    before = contents(database(last))
    (tmp_path / "backups").write_text("no directory")
    with pytest.raises(OSError, match="backups"):
        upgrade(last, tmp_path / "backups", now=1e10)
    assert contents(database(last)) == before


def test_a_store_of_today_needs_no_upgrade(where: Where, tmp_path: Path) -> None:
    MetaStore(where).close()
    done = upgrade(where, tmp_path / "backups", now=1.0)
    assert (done.before, done.after, done.backup) == (STORE_VERSION, STORE_VERSION, None)
    assert not (tmp_path / "backups").exists()


# checksums


@pytest.fixture
def written(where: Where) -> Where:
    meta = MetaStore(where, sync=False)
    lease = meta.acquire("p", "me", 0.0, 30.0)
    save_shape(meta, lease, text({"operators": {}}))
    for epoch in (1, 2):
        plan_epoch(meta, lease, epoch, plan_text({"slices": {"rows": 10 * epoch}}), 1.0)
        commit_epoch(meta, lease, epoch, text({"state": 10 * epoch}), 2.0)
    plan_epoch(meta, lease, 3, plan_text({"slices": {"rows": 30}}), 1.0)
    streams = StreamMeta(meta)
    streams.declare("p.s", "{}")
    with meta.writing() as connection:
        streams.append(connection, "p.s", [NewEntry(1, 1, text({"units": ["a"]}))], 1.0)
    meta.close()
    return where


def damage(where: Where, table: sa.Table, column: str, text: str, by: str, *mine: sa.ColumnElement[bool]) -> None:
    with database(where).begin() as connection:
        found = connection.execute(sa.select(table.c[column]).where(*mine)).scalar_one()
        assert text in found
        connection.execute(table.update().where(*mine).values({column: found.replace(text, by)}))


def test_a_record_that_was_damaged_is_told_by_pipeline_and_epoch(written: Where) -> None:
    damage(written, epochs, "record", "20", "21", epochs.c.epoch == 2)
    meta = MetaStore(written)
    with pytest.raises(CorruptRecordError, match="the record of epoch 2 of pipeline 'p'") as caught:
        meta.last_commit("p")
    assert caught.value.epoch == 2
    assert "backup" in caught.value.cure
    meta.close()


def test_a_plan_that_was_damaged_is_not_run(written: Where) -> None:
    damage(written, epochs, "plan", "30", "31", epochs.c.epoch == 3)
    meta = MetaStore(written)
    with pytest.raises(CorruptRecordError, match="the plan of epoch 3 of pipeline 'p'"):
        meta.planned("p")
    lease = meta.acquire("p", "you", 100.0, 30.0)
    with pytest.raises(CorruptRecordError, match="the plan of epoch 3"):
        plan_epoch(meta, lease, 3, plan_text({}), 1.0)
    meta.close()


def test_a_record_that_came_to_stand_for_another_epoch_is_found(written: Where) -> None:
    with database(written).begin() as connection:
        first = sa.select(epochs.c.record).where(epochs.c.epoch == 1).scalar_subquery()
        connection.execute(epochs.update().where(epochs.c.epoch == 2).values(record=first))
    meta = MetaStore(written)
    with pytest.raises(CorruptRecordError, match="the record of epoch 2"):
        meta.last_commit("p")
    meta.close()


def test_a_text_that_lost_its_checksum_is_damaged(written: Where) -> None:
    with database(written).begin() as connection:
        connection.execute(epochs.update().where(epochs.c.epoch == 2).values(record='{"state": 20}'))
    meta = MetaStore(written)
    with pytest.raises(CorruptRecordError, match="the record of epoch 2"):
        meta.last_commit("p")
    meta.close()


def test_shapes_and_entries_have_checksums_too(written: Where) -> None:
    damage(written, pipelines, "shape", "operators", "0perators")
    damage(written, entries, "content", '"a"', '"b"')
    meta = MetaStore(written)
    with pytest.raises(CorruptRecordError, match="the shape of pipeline 'p'"):
        meta.shape("p")
    with pytest.raises(CorruptRecordError, match=r"entry 1 of p-stream 'p\.s'"):
        StreamMeta(meta).entries("p.s", 0)
    meta.close()


# commands


def invoked(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("command", [["status"], ["status", "kept"], ["streams"], ["state", "kept", "totals"]])
@pytest.mark.parametrize("number", OLD)
def test_commands_that_read_leave_an_old_store_alone(tmp_path: Path, number: int, command: list[str]) -> None:
    store = Path(shutil.copytree(FORMATS / f"store-{number}", tmp_path / "store"))
    before = contents(database(store))
    code, output = invoked(*command, "--store", store)
    assert code == 0, output
    assert contents(database(store)) == before


@pytest.mark.parametrize(
    "command",
    [
        ["scale", "kept", "totals", "3"], ["streams", "--forget", "cut.stream", "cut.out"],
        ["state", "kept", "totals", "--import", FORMATS / "state-1.parquet"], ["scheme", "kept", "amnesia"],
    ],
)  # fmt: skip
def test_commands_that_write_refuse_an_old_store(tmp_path: Path, command: list[str]) -> None:
    store = Path(shutil.copytree(FORMATS / f"store-{STORE_VERSION - 1}", tmp_path / "store"))
    code, output = invoked(*command, "--store", store)
    assert code == 1
    assert "holdfast upgrade" in output
    assert version(store) == STORE_VERSION - 1


def test_the_command_upgrades_and_says_where_the_backup_is(tmp_path: Path) -> None:
    store = Path(shutil.copytree(FORMATS / "store-4", tmp_path / "store"))
    code, output = invoked("upgrade", "--store", store)
    assert code == 0, output
    [backup] = store.glob("meta-4-*.db")
    assert str(backup) in output.replace("\n", "")
    assert f"from version 4 to version {STORE_VERSION}" in output
    with sqlite3.connect(backup) as opened:
        assert opened.execute("SELECT value FROM holdfast WHERE key = 'store'").fetchone() == ("4",)
    assert not hf.state(store, "kept", "totals").is_empty()
    code, output = invoked("upgrade", "--store", store)
    assert (code, "already" in output) == (0, True)


def test_the_command_refuses_while_a_host_runs(tmp_path: Path) -> None:
    store = Path(shutil.copytree(FORMATS / "store-5", tmp_path / "store"))
    (store / "hosts").mkdir()
    (store / "hosts" / "a.process").write_text(this_process())
    code, output = invoked("upgrade", "--store", store)
    assert code == 1
    assert "host 'a' is running" in output
    assert version(store) == 5


def test_a_store_of_nothing_is_not_upgraded(tmp_path: Path) -> None:
    code, output = invoked("upgrade", "--store", tmp_path / "none")
    assert code == 1
    assert "there is no store" in output
    assert not (tmp_path / "none").exists()
