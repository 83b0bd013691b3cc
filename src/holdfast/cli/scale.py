"""`holdfast scale`: change the parallelism of an operator while its pipeline runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import meta_option, store_option

if TYPE_CHECKING:
    from holdfast.meta import MetaStore

__all__ = ["scale"]

_PAUSE_SECONDS = 0.1


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.argument("operator")
@click.argument("partitions", type=click.IntRange(min=1))
@store_option
@meta_option
@click.option("--wait", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
              help="How long to wait for the pipeline to do it.")  # fmt: skip
def scale(pipeline: str, operator: str, partitions: int, store: Path, meta: str | None, wait: float) -> None:
    """Run OPERATOR of PIPELINE with so many PARTITIONS, from the next epoch on. Its state is split or merged without
    a copy, and the output stays what it would have been. If OPERATOR is a source, so many tasks read."""
    from holdfast.errors import HoldfastError, UnknownStateError
    from holdfast.meta import Commands, opened_meta
    from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
    from holdfast.state.pipeline_shape import kept_shape

    with opened_meta(store, meta, writes=True) as opened:
        fragment = _fragment(opened, pipeline, operator)
        shape = kept_shape(opened, fragment)
        commands = Commands(opened)
        number = commands.ask(fragment, ScaleCommand(operator, partitions).encode(), time.time())
        until = time.monotonic() + wait
        while (text := commands.answered(number)) is None:
            if time.monotonic() > until and commands.withdraw(number):
                raise UnknownStateError(
                    f"'{fragment}' did not begin an epoch within {wait:g} s; nothing was changed",
                    cure="see that the pipeline runs and has rows to read, or give a longer --wait",
                )
            time.sleep(_PAUSE_SECONDS)
    answer = ScaleAnswer.decode(text)
    if answer.epoch is None:
        raise HoldfastError(answer.problem or "", cure=answer.cure, operator=answer.operator)
    source = shape is not None and operator in shape.sources
    what = ("task" if source else "partition") + ("" if partitions == 1 else "s")
    click.echo(f"{operator} of {fragment} has {partitions} {what} from epoch {answer.epoch} on")


def _fragment(meta: MetaStore, pipeline: str, operator: str) -> str:
    """The running fragment that has the operator or source, where p-streams cut the pipeline."""
    from holdfast.engine.lease import is_dead
    from holdfast.errors import UnknownStateError
    from holdfast.state.pipeline_shape import kept_shape

    known = meta.pipelines()
    parts = {name: kept_shape(meta, name) for name in known if name == pipeline or name.startswith(f"{pipeline}.")}
    if not parts:
        raise UnknownStateError(
            f"there is no pipeline '{pipeline}'", cure=f"the store has: {', '.join(known) or 'none'}"
        )
    names = {name: [*shape.operators, *shape.sources] for name, shape in parts.items() if shape is not None}
    for name, found in names.items():
        if operator in found:
            lease = meta.owner_of(name)
            if lease is None or lease[1] < time.time() or is_dead(lease[0]):
                raise UnknownStateError(
                    f"'{name}' is not running", cure="start it first, or declare another number of `partitions`"
                )
            return name
    raise UnknownStateError(
        f"'{pipeline}' has no stateful operator or source '{operator}'",
        cure=f"it has: {', '.join(known for found in names.values() for known in found)}",
    )
