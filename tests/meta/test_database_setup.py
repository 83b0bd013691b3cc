"""`holdfast init`: a role that can run pipelines and nothing else, made once, told plainly, or refused with a cure."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from sqlalchemy.exc import ProgrammingError

import holdfast as hf
from harness import Cut, run_in
from holdfast.cli import main
from holdfast.engine.fragment_runs import open_cuts
from holdfast.errors import HoldfastError, OldStoreError, UnknownVersionError
from holdfast.formats import STORE_VERSION
from holdfast.meta import Commands, MetaStore, Repairs, set_up_database, setup_script, upgrade
from holdfast_lab.chaos.database_server import DatabaseServer
from postgres import fresh_url

SECRET = "the $ecret of 'many' 100%"
_NUMBERS = itertools.count(1)


@pytest.fixture
def role() -> str:
    return f"runner{next(_NUMBERS)}"


def init(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, arguments)], env=env)


def told(*arguments: object, env: dict[str, str] | None = None) -> str:
    done = init(*arguments, env=env)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*arguments: object) -> str:
    done = init(*arguments)
    assert done.exit_code == 1, done.output
    return done.output


def asked(url: str, *statements: str) -> list[sa.Row[tuple[object, ...]]]:
    """What the last of the statements answers."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            answer = connection.exec_driver_sql(statement)
        return list(answer.all()) if answer.returns_rows else []


def counted(home: Path, meta: MetaStore) -> pl.DataFrame:
    """Two fragments with a p-stream between them, and windows, run to their end."""
    pipeline = hf.Pipeline("clicks")
    rows = pl.DataFrame({"ts": range(60), "k": [n % 3 for n in range(60)]})
    kept = pipeline.source("in", hf.source.memory(rows), event_time="ts", time_unit="s").persist("kept", push_up=False)
    counts = kept.key_by("k").window(hf.window.tumbling("20s")).agg(n=hf.count())
    counts.sink("out", hf.sink.parquet(home / "out"))
    for fragment in open_cuts(pipeline, meta).fragments:
        run_in(home, fragment.pipeline, Cut(20), meta=meta)
    return hf.read_output(home / "out", "parquet")


def test_the_role_runs_a_pipeline_to_its_end_and_may_do_nothing_else(
    postgresql: DatabaseServer, role: str, tmp_path: Path
) -> None:
    other = fresh_url(postgresql)
    asked(other, "CREATE TABLE private (content text)")
    others = other.partition("//")[2].partition("@")[0]
    told(postgresql.url, "--role", role)
    url = postgresql.url_of(role)
    meta = MetaStore(url)
    assert counted(tmp_path, meta)["n"].sum() == 60
    assert Commands(meta).ask("clicks", "{}", 1.0) == 1, "its numbers come from a sequence"
    assert Repairs(meta).ask("clicks", "{}", "a test", 1.0) == 1
    meta.close()
    shown = CliRunner().invoke(main, ["status", "--store", str(tmp_path), "--meta", url])
    assert shown.exit_code == 0, shown.output
    assert "clicks" in shown.output
    for statement in (
        "CREATE TABLE mine (a int)",
        "CREATE TABLE public.mine (a int)",
        "CREATE SCHEMA mine",
        "CREATE ROLE mine",
        f"SELECT * FROM {others}.private",
        "DROP TABLE epochs",
        "TRUNCATE epochs",
        "ALTER TABLE epochs ADD COLUMN mine int",
    ):
        with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"):
            asked(url, statement)


def test_a_second_time_nothing_changes_and_it_says_so(postgresql: DatabaseServer, role: str) -> None:
    first = told(postgresql.url, "--role", role)
    assert f"role '{role}': created" in first
    assert f"tables of version {STORE_VERSION}: created" in first
    assert f"HOLDFAST_META={postgresql.url_of(role)}" in first
    meta = MetaStore(postgresql.url_of(role))
    name = meta.identity()
    second = told(postgresql.url, "--role", role)
    assert second.count("already there") == 3
    assert "created" not in second.replace("it cannot create", "")
    assert meta.identity() == name
    meta.close()


def test_what_a_dry_run_prints_does_the_same(postgresql: DatabaseServer, role: str, tmp_path: Path) -> None:
    script = told("postgresql://nobody@127.0.0.1:1/none", "--role", role, "--dry-run",
                  env={"HOLDFAST_ROLE_PASSWORD": SECRET})  # fmt: skip
    assert script == setup_script(role)
    assert SECRET not in script
    assert "password" not in script.lower()
    for _ in range(2):
        asked(postgresql.url, script)
    assert told(postgresql.url, "--role", role).count("already there") == 3
    meta = MetaStore(postgresql.url_of(role))
    assert counted(tmp_path, meta)["n"].sum() == 60
    meta.close()


def test_who_may_not_is_told_what_it_takes(postgresql: DatabaseServer, role: str) -> None:
    said = refused(fresh_url(postgresql), "--role", role)
    assert "may not set up the meta store" in said
    assert "CREATEROLE" in said
    assert f"--role {role} --dry-run" in said
    assert asked(postgresql.url, f"SELECT FROM pg_roles WHERE rolname = '{role}'") == []


def test_an_administrator_need_not_be_a_superuser(postgresql: DatabaseServer, role: str, tmp_path: Path) -> None:
    admin = fresh_url(postgresql)
    name = admin.partition("//")[2].partition("@")[0]
    asked(postgresql.url, f"ALTER ROLE {name} CREATEROLE", f"GRANT CREATE ON DATABASE postgres TO {name}")
    told(admin, "--role", role, env={"HOLDFAST_ROLE_PASSWORD": SECRET})
    assert told(admin, "--role", role).count("already there") == 3
    meta = MetaStore(postgresql.url_of(role))
    assert counted(tmp_path, meta)["n"].sum() == 60
    meta.close()


@pytest.mark.parametrize("way", ["variable", "file"])
def test_the_password_gets_to_the_server_as_a_verifier_only(
    postgresql: DatabaseServer, role: str, tmp_path: Path, way: str
) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    given: list[object] = ["--password-file", file] if way == "file" else []
    said = told(postgresql.url, "--role", role, *given, env={"HOLDFAST_ROLE_PASSWORD": SECRET} if not given else None)
    assert "password set" in said
    assert SECRET not in said
    [(stored,)] = asked(postgresql.url, f"SELECT rolpassword FROM pg_authid WHERE rolname = '{role}'")
    _, parameters, keys = str(stored).split("$")
    rounds, salt = parameters.split(":")
    salted = hashlib.pbkdf2_hmac("sha256", SECRET.encode(), base64.b64decode(salt), int(rounds))
    key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    assert base64.b64decode(keys.split(":")[0]) == key


def test_an_empty_password_is_refused(postgresql: DatabaseServer, role: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("\n")
    assert "is empty" in refused(postgresql.url, "--role", role, "--password-file", tmp_path / "password")


@pytest.mark.parametrize("name", ["", "public", "pg_mine", "Runner", "a;b", 'a"b', "a" * 64])
def test_a_name_that_is_none_is_refused_before_anything_is_asked(name: str) -> None:
    with pytest.raises(HoldfastError, match="cannot be called") as caught:
        set_up_database("postgresql://nobody@127.0.0.1:1/none", name)
    assert "lower-case" in caught.value.cure


def test_a_role_that_could_do_more_is_refused(postgresql: DatabaseServer, role: str) -> None:
    asked(postgresql.url, f"CREATE ROLE {role} LOGIN CREATEDB")
    assert "may create roles or databases" in refused(postgresql.url, "--role", role)
    asked(postgresql.url, f"ALTER ROLE {role} NOCREATEDB NOLOGIN")
    assert f"ALTER ROLE {role} LOGIN" in refused(postgresql.url, "--role", role)
    assert "is the user of the URL" in refused(postgresql.url, "--role", "holdfast")


def test_a_role_that_owns_its_tables_is_refused_until_they_are_given_away(postgresql: DatabaseServer) -> None:
    url = fresh_url(postgresql)
    name = url.partition("//")[2].partition("@")[0]
    told(url)
    said = refused(postgresql.url, "--role", name)
    assert "belong to the role itself" in said
    cure = f"REASSIGN OWNED BY {name} TO holdfast"
    assert cure in said
    asked(postgresql.url, cure)
    told(postgresql.url, "--role", name)
    MetaStore(url).close()
    with pytest.raises(ProgrammingError, match="permission denied"):
        asked(url, "CREATE TABLE mine (a int)")


def test_an_old_store_is_upgraded_by_its_owner_and_the_role_goes_on(
    postgresql: DatabaseServer, role: str, tmp_path: Path
) -> None:
    """As a version before would have left it, which had no table of notices."""
    told(postgresql.url, "--role", role)
    older = f"UPDATE {role}.holdfast SET value = '{STORE_VERSION - 1}' WHERE key = 'store'"
    asked(postgresql.url, older, f"DROP TABLE {role}.notices")
    url = postgresql.url_of(role)
    with pytest.raises(OldStoreError, match="holdfast upgrade"):
        MetaStore(url)
    said = refused(postgresql.url, "--role", role)
    assert "holdfast upgrade" in said
    admins = f"{postgresql.url}?options=-csearch_path%3D{role}"
    assert f"--meta '{admins}'" in said
    with pytest.raises(HoldfastError, match="belong to 'holdfast'") as caught:
        upgrade(url, tmp_path, now=1e10)
    assert f"?options=-csearch_path%3D{role}" in caught.value.cure
    assert list(tmp_path.iterdir()) == []
    done = CliRunner().invoke(main, ["upgrade", "--store", str(tmp_path), "--meta", admins])
    assert done.exit_code == 0, done.output
    meta = MetaStore(url)
    assert counted(tmp_path, meta)["n"].sum() == 60
    Repairs(meta).notice(meta.acquire("other", "me", 1.0, 1.0), ["a new table, with rights"], 1.0)
    meta.close()


def test_a_newer_store_is_refused_with_the_command_that_helps(postgresql: DatabaseServer, role: str) -> None:
    told(postgresql.url, "--role", role)
    asked(postgresql.url, f"UPDATE {role}.holdfast SET value = '{STORE_VERSION + 1}' WHERE key = 'store'")
    with pytest.raises(UnknownVersionError, match="this program is older") as caught:
        MetaStore(postgresql.url_of(role))
    assert "pip install --upgrade holdfast" in caught.value.cure
    assert "pip install --upgrade holdfast" in refused(postgresql.url, "--role", role)


def test_without_init_a_user_without_rights_is_sent_to_it(postgresql: DatabaseServer, role: str) -> None:
    asked(postgresql.url, f"CREATE ROLE {role} LOGIN")
    with pytest.raises(HoldfastError, match="may not create tables") as caught:
        MetaStore(postgresql.url_of(role))
    assert "holdfast init" in caught.value.cure


def test_a_connection_that_the_server_ends_is_replaced(postgresql: DatabaseServer, role: str) -> None:
    told(postgresql.url, "--role", role)
    meta = MetaStore(postgresql.url_of(role))
    lease = meta.acquire("clicks", "me", 0.0, 30.0)
    ended = asked(postgresql.url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")
    assert ended, "the pool keeps connections open"
    meta.renew(lease, 1.0, 30.0)
    meta.close()


def test_a_directory_becomes_a_store_once(tmp_path: Path) -> None:
    assert f"was created, with version {STORE_VERSION}" in told(tmp_path / "store")
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0
    assert "already exists" in told(tmp_path / "store")


@pytest.mark.parametrize(
    "arguments",
    [["store", "--role", "r"], ["store", "--dry-run"], ["postgresql://a@b/c", "--dry-run"], ["s3://bucket"]],
)
def test_wrong_usage_is_told(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert init(*arguments).exit_code == 2
    assert list(tmp_path.iterdir()) == []
