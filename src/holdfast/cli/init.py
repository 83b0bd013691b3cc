"""`holdfast init`: make a store before anything runs on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import META_VARIABLE, LocalPath
from holdfast.errors import DeclarationError, UnknownStateError
from holdfast.formats import STORE_VERSION

if TYPE_CHECKING:
    from holdfast.meta import DatabaseSetup

__all__ = ["PASSWORD_VARIABLE", "init"]

PASSWORD_VARIABLE = "HOLDFAST_ROLE_PASSWORD"


@click.command(cls=HoldfastCommand)
@click.argument("where", metavar="DIR|URL")
@click.option("--role", metavar="NAME",
              help="Create this PostgreSQL role, and tables in a schema of the same name that it may only read and"
              " write. Runs then connect as this role.")  # fmt: skip
@click.option("--password-file", type=LocalPath(exists=True, dir_okay=False), metavar="FILE",
              help=f"File with the password of the role.  [default: {PASSWORD_VARIABLE}, or none]")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the SQL for --role, connect to nothing and change nothing.")
def init(where: str, role: str | None, password_file: Path | None, dry_run: bool) -> None:
    """Set up a store: in the directory DIR, or the meta store in PostgreSQL at URL.

    URL is for an administrator, e.g. postgresql://postgres@db.example.com/holdfast, with the right to create roles and
    schemas; libpq takes the password from ~/.pgpass or PGPASSWORD. With --role, runs get a role with exactly the rights
    they need. What already exists stays as it is, so the command can be run again.
    """
    from holdfast.meta import set_up_database, setup_script

    database = where.startswith(("postgresql:", "postgresql+psycopg:", "postgres:"))
    if role is None and (dry_run or password_file is not None):
        raise click.UsageError("--dry-run and --password-file need --role")
    if role is not None and not database:
        raise click.UsageError("--role needs a postgresql:// URL")
    if role is None:
        _init_store(where if database else LocalPath(file_okay=False).convert(where, None, None))
        return
    if dry_run:
        click.echo(setup_script(role), nl=False)
        return
    _tell(set_up_database(where, role, _password(password_file)), role)


def _init_store(where: Path | str) -> None:
    from holdfast.database_url import parse_url, shown_url
    from holdfast.meta import MetaStore

    try:
        MetaStore(where, reads_only=True).close()
        new = False
    except UnknownStateError:
        new = True
    made = MetaStore(where.resolve() if isinstance(where, Path) else where)
    made.close()
    shown = where if isinstance(where, Path) else shown_url(parse_url(where, "the meta store", "postgresql://…"))
    click.echo(f"the store {shown} {'was created' if new else 'already exists'}, with version {made.version}")
    if not isinstance(where, Path):
        click.echo("its user may change and drop the tables; --role NAME makes a role with fewer rights")


def _password(file: Path | None) -> str | None:

    text = os.environ.get(PASSWORD_VARIABLE) if file is None else file.read_text(encoding="utf-8").rstrip("\r\n")
    if text == "":
        raise DeclarationError(
            f"the password of the role is empty ({file or PASSWORD_VARIABLE})",
            cure="write it there, or leave it out if the server identifies the role in another way",
        )
    return text


def _tell(done: DatabaseSetup, role: str) -> None:
    def said(new: bool) -> str:
        return "created" if new else "already there"

    click.echo(f"role '{role}': {said(done.new_role)}{', password set' if done.password_set else ''}")
    click.echo(f"schema '{role}': {said(done.new_schema)}")
    click.echo(f"tables of version {STORE_VERSION}: {said(done.new_tables)}")
    click.echo(f"rights of '{role}': connect, and read and write these tables; it cannot create, change or drop any")
    if done.makes_tables_in:
        places = ", ".join(done.makes_tables_in)
        click.echo(f"note: anyone may create tables in {places}; to stop that: REVOKE CREATE ON SCHEMA … FROM PUBLIC")
    click.echo(f"runs use: {META_VARIABLE}={done.url}")
