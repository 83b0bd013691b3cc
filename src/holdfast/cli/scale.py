"""`holdfast scale`: change the parallelism of an operator while its pipeline runs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import store_option

__all__ = ["scale"]

_PAUSE_SECONDS = 0.1


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.argument("operator")
@click.argument("partitions", type=click.IntRange(min=1))
@store_option
@click.option("--meta", metavar="URL", help="SQLAlchemy URL of the meta store.  [default: SQLite in the store]")
@click.option("--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
              help="How long to wait for the pipeline to do it.")  # fmt: skip
def scale(pipeline: str, operator: str, partitions: int, store: Path, meta: str | None, wait: float) -> None:
    """Run OPERATOR of PIPELINE with so many PARTITIONS, from the next epoch on. Its state is split or merged without
    a copy, and the output stays what it would have been. If OPERATOR is a source, so many tasks read."""
    from holdfast.errors import HoldfastError, UnknownStateError
    from holdfast.meta import Commands, MetaStore

    if meta is None and not (store / "meta.db").exists():
        raise UnknownStateError(f"there is no store at {store}", cure="give the store of a run with --store")
    opened = MetaStore(meta or store)
    try:
        fragment = _fragment(opened, pipeline, operator)
        commands = Commands(opened)
        number = commands.ask(fragment, {"do": "scale", "operator": operator, "partitions": partitions}, time.time())
        until = time.monotonic() + wait
        while (answer := commands.answered(number)) is None:
            if time.monotonic() > until and commands.withdraw(number):
                raise UnknownStateError(
                    f"'{fragment}' did not begin an epoch within {wait:g} s; nothing was changed",
                    cure="see that the pipeline runs and has rows to read, or give a longer --wait",
                )
            time.sleep(_PAUSE_SECONDS)
    finally:
        opened.close()
    if "problem" in answer:
        raise HoldfastError(answer["problem"], cure=answer["cure"], operator=answer["operator"])
    click.echo(f"{operator} of {fragment} has {partitions} partitions from epoch {answer['epoch']} on")


def _fragment(meta: object, pipeline: str, operator: str) -> str:
    """The fragment that holds the operator, where p-streams cut the pipeline."""
    from holdfast.errors import UnknownStateError
    from holdfast.meta import MetaStore

    assert isinstance(meta, MetaStore)
    known = meta.pipelines()
    for name in known:
        if name == pipeline or name.startswith(f"{pipeline}."):
            shape = meta.shape(name)
            if shape is not None and operator in (*shape["operators"], *shape["sources"]):
                return name
    if pipeline in known:
        return pipeline
    raise UnknownStateError(
        f"there is no pipeline '{pipeline}' with an operator '{operator}'", cure=f"the store has: {', '.join(known)}"
    )
