"""`holdfast prepare`: an archive of Java classes, so that sessions start faster from now on."""

from __future__ import annotations

import time

import click

from holdfast.cli.group import HoldfastCommand

__all__ = ["prepare"]


@click.command(cls=HoldfastCommand)
def prepare() -> None:
    """Make Spark start faster from now on: cache an archive of its Java classes.

    Later sessions with the same user, Java runtime and PySpark start from it. Takes less than a minute and about
    160 MB in ~/.cache/holdfast (or XDG_CACHE_HOME). Run it again after an update of Java or PySpark; an archive
    that does not match is ignored.
    """
    from holdfast.engine.warmup import warm_up
    from holdfast.spark.class_archive import make_archive

    began = time.monotonic()
    archive = make_archive(warm_up)
    size = archive.stat().st_size / 1e6
    click.echo(f"archive of Spark's classes: {archive} ({size:.0f} MB, made in {time.monotonic() - began:.0f} s)")
