"""`holdfast scale`: change the parallelism of an operator while its pipeline runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import SecondsRange, meta_option, store_option
from holdfast.errors import HoldfastError, UnknownStateError

if TYPE_CHECKING:
    from holdfast.meta import MetaStore

__all__ = ["scale"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.argument("operator")
@click.argument("partitions", type=click.IntRange(min=1))
@store_option
@meta_option
@click.option("--wait", type=SecondsRange(min=0), default=30.0, show_default=True, metavar="DURATION",
              help="How long to wait for the change.")  # fmt: skip
def scale(pipeline: str, operator: str, partitions: int, store: Path, meta: str | None, wait: float) -> None:
    """Run OPERATOR of PIPELINE with this number of PARTITIONS, from the next epoch on. Its state is split or merged
    without a copy, and the output does not change. If OPERATOR is a source, this many tasks read it."""
    from holdfast.meta import opened_meta
    from holdfast.plan.scale_command import ScaleCommand
    from holdfast.state.inspection import kept_shape
    from holdfast.ui.scale_request import ask_to_scale

    with opened_meta(store, meta, writes=True) as opened:
        fragment = _fragment(opened, pipeline, operator)
        shape = kept_shape(opened, fragment)
        command = ScaleCommand(operator, partitions)
        answer, _ = ask_to_scale(opened, store, fragment, command, wait, "requested by holdfast scale")
    if answer.epoch is None:
        raise HoldfastError(answer.problem or "", cure=answer.cure, operator=answer.operator)
    source = shape is not None and operator in shape.sources
    what = ("task" if source else "partition") + ("" if partitions == 1 else "s")
    click.echo(f"{operator} of {fragment} has {partitions} {what} from epoch {answer.epoch} on")


def _fragment(meta: MetaStore, pipeline: str, operator: str) -> str:
    """The running fragment that has the operator or source, where p-streams cut the pipeline."""
    from holdfast.state.inspection import kept_shape

    known = meta.pipelines()
    parts = {name: kept_shape(meta, name) for name in known if name == pipeline or name.startswith(f"{pipeline}.")}
    if not parts:
        raise UnknownStateError(
            f"there is no pipeline '{pipeline}'", cure=f"the store has: {', '.join(known) or 'none'}"
        )
    names = {name: [*shape.operators, *shape.sources] for name, shape in parts.items() if shape is not None}
    for name, found in names.items():
        if operator in found:
            if meta.runner_of(name, time.time()) is None:
                raise UnknownStateError(
                    f"'{name}' is not running", cure="start it first, or declare another number of `partitions`"
                )
            return name
    raise UnknownStateError(
        f"'{pipeline}' has no stateful operator or source '{operator}'",
        cure=f"it has: {', '.join(known for found in names.values() for known in found)}",
    )
