"""Running a pipeline that p-streams cut: each fragment has its own lease, epochs and commits, on one platform.

All fragments of a pipeline can run in one process, or each in its own. A fragment that reads the output of another one
ends when that one has ended and nothing is left to read.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from holdfast.engine.code_changes import check_changes, placement_now
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.place_checks import check_places
from holdfast.engine.platform import Platform
from holdfast.engine.summary import EndReason
from holdfast.epoch.record import EpochRecord
from holdfast.errors import DeclarationError, PipelineChangedError
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import MetaStore, StreamMeta, is_operator
from holdfast.plan.cuts import CutPipeline, Fragment, cut_pipeline, links_of, stream_name
from holdfast.plan.places import cuts_of
from holdfast.plan.program import compile_program
from holdfast.plan.source_sample import place_cuts
from holdfast.pstream import Announcements, Placement, StreamDescription
from holdfast.pstream.pstream import PStream
from holdfast.threads import SYSTEM, Calls, Threads

__all__ = ["FragmentsRun", "chosen_fragments", "end_reason", "kept_placements", "open_cuts"]


def kept_placements(pipeline: Pipeline, meta: MetaStore) -> dict[str, Placement]:
    """Where the cuts of a pipeline are, as far as the store knows them."""
    streams = StreamMeta(meta)
    there = set(streams.streams())
    known = {}
    for cut in cuts_of(pipeline.nodes):
        name = stream_name(pipeline.name, cut.name)
        if name in there:
            known[cut.name] = placement_now(pipeline, StreamDescription.decode(streams.state(name).description))
    return known


def open_cuts(pipeline: Pipeline, meta: MetaStore) -> CutPipeline:
    """Cut a pipeline as the store knows it, or as is best now.

    What is decided now is kept, and every fragment that reads a p-stream is made known to it, so that
    nothing is released before those that start later have read it.
    """
    streams = StreamMeta(meta)
    made = cut_pipeline(pipeline, place_cuts(pipeline, kept_placements(pipeline, meta)))
    for fragment in made.fragments:  # before anything is written: a change that is refused leaves no trace
        check_changes(compile_program(fragment.pipeline), meta)
    known = {
        plan.cut.name: StreamDescription.decode(streams.declare(plan.name, plan.description().encode()).description)
        for plan in made.streams
    }
    # Another process may have been first; then its places hold.
    made = cut_pipeline(pipeline, {cut: placement_now(pipeline, described) for cut, described in known.items()})
    for plan in made.streams:
        plan.check(known[plan.cut.name], pipeline.name)
    _check_readers(pipeline, made, streams)
    for fragment in made.fragments:
        for stream in fragment.reads:
            PStream(meta, Path(), stream).subscribe(fragment.name)
    return made


def _check_readers(pipeline: Pipeline, made: CutPipeline, streams: StreamMeta) -> None:
    """Refuse to continue without a fragment that has read: it would hold back its stream forever, and its state would
    be abandoned. A fragment has the name of its first sink, so a new sink before it renames it."""
    reading = {(stream, fragment.name) for fragment in made.fragments for stream in fragment.reads}
    for plan in made.streams:
        for marker in streams.markers(plan.name):
            short = marker.by.removeprefix(f"{pipeline.name}.")
            own = short != marker.by and "." not in short and not is_operator(marker.by)
            if own and (plan.name, marker.by) not in reading:
                raise PipelineChangedError(
                    f"pipeline '{pipeline.name}' has changed: the fragment '{marker.by}', which reads p-stream"
                    f" '{plan.name}', is gone",
                    cure="undo the change, or declare its sinks in their old order; to continue without it,"
                    f" run: holdfast streams --forget {plan.name} {marker.by}",
                    operator=short,
                )


class FragmentsRun:
    """One run of a pipeline, or of some of its fragments (`only`), by this process. `announcements` are of others in it
    that write p-streams that these read."""

    def __init__(
        self,
        pipeline: Pipeline,
        platform: Platform,
        options: RunOptions,
        *,
        only: Sequence[str] = (),
        observer: Observer | None = None,
        open_meta: Callable[[], MetaStore] | None = None,
        threads: Threads = SYSTEM,
        announcements: Announcements | None = None,
    ) -> None:
        """`open_meta` opens the meta store; by default it is opened as the options say."""
        self.pipeline = pipeline
        self._platform = platform
        self._threads = threads
        announcements = announcements or Announcements(threads)
        check_places(pipeline, options.store.resolve())  # also of sinks in other fragments
        meta = MetaStore(options.meta or options.store, sync=options.durable) if open_meta is None else open_meta()
        try:
            self.cuts = open_cuts(pipeline, meta)
        finally:
            meta.close()
        chosen = chosen_fragments(pipeline, self.cuts.fragments, only)
        self._options: dict[str, RunOptions] = {}
        self._ended: set[str] = set()
        self._stopped = False
        self.runs: dict[str, FragmentRun] = {}
        self.reasons: dict[str, EndReason] = {}
        """Why fragments have ended, of those that have."""
        with contextlib.ExitStack() as opened:  # those before one that fails let go of their meta stores
            for fragment in chosen:
                links = links_of(fragment, chosen)
                # What limits a run limits what it takes in; the rest of it is then worked off.
                self._options[fragment.name] = (
                    replace(options, max_epochs=None, max_seconds=None, until_idle=True, trigger=None)
                    if links.inner
                    else options
                )
                self.runs[fragment.name] = FragmentRun(
                    fragment.pipeline,
                    platform.shared(len(chosen)),
                    self._options[fragment.name],
                    observer=observer,
                    upstream_ended=lambda links=links: self._ended.issuperset(links.upstream),  # type: ignore[misc]
                    meta=None if open_meta is None else open_meta(),
                    threads=threads,
                    announcements=announcements,
                )
                opened.callback(self.runs[fragment.name].close)
            opened.pop_all()

    def stop(self) -> None:
        """Ask all fragments to end: epochs in flight are committed first."""
        self._stopped = True
        for run in self.runs.values():
            run.stop()

    def run(self) -> dict[str, EpochRecord]:
        """Run until the sources end or somebody stops it. Returns the last committed record of each fragment."""
        began = self._threads.now()
        if len(self.runs) == 1:
            [(name, run)] = self.runs.items()
            record = run.run()
            self.reasons[name] = self._reason(name, record, began)
            return {name: record}
        outcomes = self._threads.calls()

        def work(name: str, run: FragmentRun) -> None:
            try:
                outcomes.put((name, run.run()))
            except BaseException as error:  # noqa: BLE001 - carried to the main thread, which raises it
                outcomes.put((name, error))

        for name, run in self.runs.items():
            self._platform.start(partial(work, name, run), f"fragment-{name}")
        records: dict[str, EpochRecord] = {}
        failure: BaseException | None = None
        for _ in self.runs:
            name, outcome = _next(outcomes)
            self._ended.add(name)
            if isinstance(outcome, BaseException):
                failure = failure or outcome
                self.stop()
            else:
                records[name] = outcome
                self.reasons[name] = self._reason(name, outcome, began)
        if failure is not None:
            raise failure
        return records

    def _reason(self, fragment: str, record: EpochRecord, began: float) -> EndReason:
        options, seconds = self._options[fragment], self._threads.now() - began
        return end_reason(options, record.done, self.runs[fragment].committed, seconds, stopped=self._stopped)


def end_reason(
    options: RunOptions, done: Mapping[str, bool], committed: int, seconds: float, *, stopped: bool
) -> EndReason:
    """Why a fragment has ended after so many seconds, `done` being which of its sources had ended."""
    if all(done.values()):
        return "its sources ended"
    if stopped:
        return "it was stopped"
    if options.max_epochs is not None and committed >= options.max_epochs:
        return "max_epochs was reached"
    if options.max_seconds is not None and (seconds >= options.max_seconds or not options.until_idle):
        return "the time was up"
    return "nothing was left to read"


def _next(outcomes: Calls) -> tuple[str, EpochRecord | BaseException]:
    """Wait in short steps, so that signals are seen."""
    while True:
        with contextlib.suppress(queue.Empty):
            outcome: tuple[str, EpochRecord | BaseException] = outcomes.get(timeout=0.2)
            return outcome


def chosen_fragments(pipeline: Pipeline, fragments: Sequence[Fragment], only: Sequence[str]) -> list[Fragment]:
    """Those of the fragments that are named, by their whole names or without the pipeline's; without names all."""
    if not only:
        return list(fragments)
    short = {fragment.name.removeprefix(f"{pipeline.name}."): fragment for fragment in fragments}
    for name in only:
        if name.removeprefix(f"{pipeline.name}.") not in short:
            raise DeclarationError(
                f"pipeline '{pipeline.name}' has no fragment '{name}'", cure=f"its fragments are: {', '.join(short)}"
            )
    return [fragment for name, fragment in short.items() if name in {o.removeprefix(f"{pipeline.name}.") for o in only}]
