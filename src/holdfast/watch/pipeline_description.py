"""What a pipeline is, for those who watch it and do not have its code: operators, p-streams, and what it promises.

A run writes it at its start, `STORE/_events/PIPELINE.pipeline.json`, in place of the one before.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from holdfast.graph.graph_picture import node_kind
from holdfast.graph.nodes import Node, Persist, SourceNode, Stateful
from holdfast.graph.pipeline import Pipeline
from holdfast.plan.cuts import Fragment, stream_name
from holdfast.plan.explain import node_lines
from holdfast.watch.event_log import event_directory

__all__ = [
    "DescribedNode", "DescribedPipeline", "Promise", "describe_pipeline", "keep_description", "kept_descriptions",
]  # fmt: skip

_SUFFIX = ".pipeline.json"


class DescribedNode(msgspec.Struct, frozen=True, kw_only=True):
    """An operator. `fragment` is the one that runs it; `stream` is the p-stream behind it, where it is one."""

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    fragment: str = ""
    stream: str = ""
    keys: tuple[str, ...] = ()
    unit: str = ""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The guarantee of a pipeline, in seconds and money per hour."""

    recovery: float | None = None
    delivery: str = "exactly-once"
    budget: float | None = None
    completeness: float | None = None


class DescribedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as it was at its last start. `latency` is what an epoch may take."""

    pipeline: str
    at: float
    fragments: tuple[str, ...] = ()
    nodes: tuple[DescribedNode, ...] = ()
    guarantee: Promise = Promise()
    latency: float | None = None
    target: str = ""
    """Its code, as `FILE:NAME`, where a command has read it from a file."""


def describe_pipeline(
    pipeline: Pipeline, fragments: Iterable[Fragment], latency: float | None, clock: Callable[[], float] = time.time
) -> DescribedPipeline:
    """As the fragments are that it is cut into."""
    cuts = list(fragments)
    owner = {name: cut.name for cut in reversed(cuts) for name in cut.pipeline.nodes}
    asked = pipeline.guarantee
    return DescribedPipeline(
        pipeline=pipeline.name,
        at=clock(),
        fragments=tuple(cut.name for cut in cuts),
        nodes=tuple(_described(node, owner, pipeline.name) for node in pipeline.nodes.values()),
        guarantee=Promise(
            recovery=asked.recovery_seconds, delivery=str(asked.delivery), budget=asked.budget,
            completeness=asked.completeness,
        ),
        latency=latency,
        target=pipeline.target,
    )  # fmt: skip


def _described(node: Node, owner: Mapping[str, str], pipeline: str) -> DescribedNode:
    stream = isinstance(node, Persist)
    return DescribedNode(
        name=node.name,
        kind=node_kind(node),
        inputs=node.inputs,
        text=("p-stream",) if stream else tuple(node_lines(node)),
        fragment=owner.get(node.name, ""),
        stream=stream_name(pipeline, node.name) if stream else "",
        keys=node.keys if isinstance(node, Stateful) else (),
        unit=str(node.time.unit) if isinstance(node, SourceNode) and node.time is not None else "",
    )


def keep_description(store: Path, described: DescribedPipeline) -> None:
    """If it cannot be written, it is not shown: no run ends for that."""
    with contextlib.suppress(OSError):
        place = event_directory(store)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = place / f".{described.pipeline}.{os.getpid()}.new"
        made.write_bytes(msgspec.json.encode(described))
        made.replace(place / f"{described.pipeline}{_SUFFIX}")


def kept_descriptions(store: Path) -> dict[str, DescribedPipeline]:
    """By the names of the pipelines; what cannot be read is left out."""
    found = {}
    for path in sorted(event_directory(store).glob(f"*{_SUFFIX}")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            described = msgspec.json.decode(path.read_bytes(), type=DescribedPipeline)
            found[described.pipeline] = described
    return found
