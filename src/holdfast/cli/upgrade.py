"""`holdfast upgrade`: upgrade a store of an older version, after a backup of its meta store."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.cli.group import LongCommand
from holdfast.cli.shared_options import meta_option, store_option
from holdfast.errors import AlreadyRunningError

__all__ = ["upgrade"]


@click.command(cls=LongCommand)
@store_option
@meta_option
def upgrade(store: Path, meta: str | None) -> None:
    """Upgrade the store to the version of this program. Other commands that write refuse an older store.

    First, the whole meta store is backed up to a file in the store's directory, meta-VERSION-TIME.db, even if the meta
    store is in PostgreSQL. Stop all pipelines, hosts and receivers of the store before you upgrade.
    """
    from holdfast.meta import upgrade as upgraded
    from holdfast.replica.process_file import running_hosts

    for host, process in running_hosts(store).items():
        raise AlreadyRunningError(
            f"host '{host}' is running as {process}",
            cure="stop all hosts of the store first; nothing was changed",
        )
    done = upgraded(meta or store, store.resolve(), now=time.time())
    if done.backup is None:
        click.echo(f"the store already has version {done.after}; nothing was changed")
        return
    click.echo(f"backup of the meta store: {done.backup}")
    click.echo(f"the store was upgraded from version {done.before} to version {done.after}")
    click.echo(
        f"to go back: run the version of Holdfast that wrote it with --meta sqlite:///{done.backup},"
        " before anything runs on the upgraded store"
    )
