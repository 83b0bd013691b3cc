"""OpenLineage: what reads and writes what, sent to a catalogue over HTTP or to a file, from the events of a store.

A run of a pipeline is a run of a job: an event at its start, one about every half minute with the rows that were
committed since the start, and one at its end. It is plain JSON, as OpenLineage's specification has it.
"""

from __future__ import annotations

import logging
import os
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast import __version__
from holdfast.dashboard.store_watch import StoreWatch
from holdfast.errors import DeclarationError
from holdfast.watch.event_kinds import EpochsDone, ErrorSeen, LoggedEvent, RunEnded, RunStarted
from holdfast.watch.event_reader import EventTail
from holdfast.watch.pipeline_description import DescribedNode, DescribedPipeline

__all__ = ["LineageEvent", "LineageExport", "LineageRuns", "lineage_receiver"]

_NAMESPACE = "holdfast"
_PRODUCER = "urn:holdfast:" + __version__
_SPECIFICATION = "2-0-2"
_LOOK_SECONDS = 1.0
_GATHER_SECONDS = 30.0
_PATIENCE_SECONDS = 5.0
_KEY_VARIABLE = "OPENLINEAGE_API_KEY"
_log = logging.getLogger(__name__)

Facet = Mapping[str, str | int]


class LineageRun(msgspec.Struct, frozen=True, rename="camel"):
    run_id: str
    facets: Mapping[str, Facet] = {}


class LineageJob(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    facets: Mapping[str, Facet] = {}


class LineageDataset(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A source, a sink or a p-stream of a pipeline. Its rows are those of this run."""

    namespace: str
    name: str
    facets: Mapping[str, Facet] = {}
    input_facets: Mapping[str, Facet] = {}
    output_facets: Mapping[str, Facet] = {}


class LineageEvent(msgspec.Struct, frozen=True, rename="camel"):
    """A RunEvent of OpenLineage."""

    event_type: str
    event_time: str
    run: LineageRun
    job: LineageJob
    inputs: tuple[LineageDataset, ...]
    outputs: tuple[LineageDataset, ...]
    producer: str = _PRODUCER
    schema_url: str = msgspec.field(name="schemaURL", default="")


@dataclass(slots=True)
class _RunSoFar:
    run_id: str
    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    """Output rows by fragment."""
    reported: float = 0.0


class LineageRuns:
    """Makes events of OpenLineage of those of a store. Pure, but for the runs it remembers."""

    def __init__(self, site: str, gather: float = _GATHER_SECONDS) -> None:
        self._site = site
        self._gather = gather
        self._runs: dict[str, _RunSoFar] = {}

    def take(self, event: LoggedEvent, described: DescribedPipeline | None) -> Iterator[LineageEvent]:
        """What an event leads to. A pipeline that ran before anybody looked has a run from then on."""
        name = event.pipeline
        if isinstance(event, RunStarted):
            self._runs[name] = _RunSoFar(_run_id(self._site, name, event.host, event.at), reported=event.at)
            yield self._event("START", event, described)
        elif isinstance(event, EpochsDone):
            run = self._known(event)
            for source, rows in event.read.items():
                run.read[source] = run.read.get(source, 0) + rows
            run.written[event.fragment] = run.written.get(event.fragment, 0) + event.output_rows
            if event.at >= run.reported + self._gather:
                run.reported = event.at
                yield self._event("RUNNING", event, described)
        elif isinstance(event, RunEnded | ErrorSeen):
            self._known(event)
            yield self._event("FAIL" if isinstance(event, ErrorSeen) else "COMPLETE", event, described)
            del self._runs[name]

    def _known(self, event: LoggedEvent) -> _RunSoFar:
        made = _RunSoFar(_run_id(self._site, event.pipeline, event.host, event.at), reported=event.at)
        return self._runs.setdefault(event.pipeline, made)

    def _event(self, kind: str, event: LoggedEvent, described: DescribedPipeline | None) -> LineageEvent:
        run = self._runs[event.pipeline]
        nodes = () if described is None else described.nodes
        job = LineageJob(
            _NAMESPACE, event.pipeline,
            {"jobType": _facet("JobTypeJobFacet", "2-0-3", processingType="STREAMING", integration="HOLDFAST",
                               jobType="PIPELINE")},
        )  # fmt: skip
        engine = _facet("ProcessingEngineRunFacet", "1-1-1", name="holdfast", version=__version__)
        facets = {"processing_engine": engine}
        if isinstance(event, ErrorSeen):
            facets["errorMessage"] = _facet(
                "ErrorMessageRunFacet", "1-0-1", message=event.message, programmingLanguage="python"
            )
        return LineageEvent(
            kind,
            datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            LineageRun(run.run_id, facets),
            job,
            tuple(
                _dataset(event.pipeline, node.name, node.text, read=run.read.get(node.name))
                for node in nodes
                if node.kind == "source"
            ),
            tuple(
                _dataset(event.pipeline, node.name, node.text, written=self._written(run, nodes, node))
                for node in nodes
                if node.kind in ("sink", "stream")
            ),
            schema_url=f"https://openlineage.io/spec/{_SPECIFICATION}/OpenLineage.json#/$defs/RunEvent",
        )

    def _written(self, run: _RunSoFar, nodes: tuple[DescribedNode, ...], of: DescribedNode) -> int | None:
        """Rows of a fragment are known for all its sinks together: they are sent where it has one."""
        sinks = [node for node in nodes if node.kind == "sink" and node.fragment == of.fragment]
        return run.written.get(of.fragment) if sinks == [of] else None


def _facet(name: str, version: str, /, **facts: str | int) -> Facet:
    schema = f"https://openlineage.io/spec/facets/{version}/{name}.json#/$defs/{name}"
    return {"_producer": _PRODUCER, "_schemaURL": schema, **facts}


def _dataset(
    pipeline: str, node: str, text: tuple[str, ...], *, read: int | None = None, written: int | None = None
) -> LineageDataset:
    reported = (
        {"documentation": _facet("DocumentationDatasetFacet", "1-1-0", description="; ".join(text))} if text else {}
    )
    statistics = "InputStatisticsInputDatasetFacet", "OutputStatisticsOutputDatasetFacet"
    return LineageDataset(
        _NAMESPACE,
        f"{pipeline}.{node}",
        reported,
        {} if read is None else {"inputStatistics": _facet(statistics[0], "1-0-0", rowCount=read)},
        {} if written is None else {"outputStatistics": _facet(statistics[1], "1-0-2", rowCount=written)},
    )


def _run_id(site: str, pipeline: str, host: str, at: float) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"holdfast:{site}:{pipeline}:{host}:{at:.6f}"))


def lineage_receiver(where: str) -> Callable[[bytes], None]:
    """Who gets the events: the address of a catalogue, or a file that they are appended to, a line for each."""
    if where.startswith(("http://", "https://")):
        key = os.environ.get(_KEY_VARIABLE)
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}

        def post(body: bytes) -> None:
            request = urllib.request.Request(where, body, headers, method="POST")
            with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS):
                pass

        return post
    if "://" in where:
        raise DeclarationError(
            f"{where} is not a receiver of OpenLineage", cure="give an http:// or https:// address, or a file"
        )
    path = Path(where)

    def append(body: bytes) -> None:
        with path.open("ab") as file:
            file.write(body + b"\n")

    return append


class LineageExport:
    """Follows the events of a store in a thread of its own, until it is closed."""

    def __init__(self, watch: StoreWatch, where: str, *, gather: float = _GATHER_SECONDS) -> None:
        self._watch = watch
        self._receive = lineage_receiver(where)
        self._runs = LineageRuns(str(watch.store), gather)
        self._tail = EventTail(watch.store, watch.look().now)
        self._failing = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lineage", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._tell()

    def __enter__(self) -> LineageExport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._tell()

    def _tell(self) -> None:
        """If the receiver does not answer, what should have been sent is lost, and logged once."""
        events = self._tail.new()
        described = self._watch.look().descriptions if events else {}
        for event in events:
            for made in self._runs.take(event, described.get(event.pipeline)):
                try:
                    self._receive(msgspec.json.encode(made))
                    self._failing = False
                except (OSError, urllib.error.URLError) as error:
                    if not self._failing:
                        _log.warning("lineage could not be sent: %s", error)
                    self._failing = True
