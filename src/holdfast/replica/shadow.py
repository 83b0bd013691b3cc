"""The shadow of a pipeline: new code that runs every epoch which its hosts plan, as a secondary does, with state of its
own and no output. What it would have emitted is compared with what was committed, epoch by epoch and sink by
sink, until there is a verdict.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import polars as pl
from msgspec import structs

from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.platform import Platform
from holdfast.engine.roles import Role, Seat
from holdfast.engine.shadow_output import withheld_output, withheld_rows
from holdfast.engine.state_digest import state_digests
from holdfast.epoch.digest import difference, differences
from holdfast.epoch.record import EpochRecord
from holdfast.errors import EpochFailedError, HoldfastError, LeaseLostError
from holdfast.meta import FollowerNeeds, Lease, MetaStore
from holdfast.meta.lease_holder import this_process
from holdfast.plan.cuts import Fragment
from holdfast.plan.executor_choice import ExecutorName
from holdfast.plan.program import Program
from holdfast.replica.seat_store import Agreement
from holdfast.replica.shadow_checks import Succession, checksum_of
from holdfast.replica.shadow_report import ShadowReport, keep_shadow
from holdfast.store import Private, Tiers, remove_tree
from holdfast.threads import Thread

__all__ = ["Shadow", "ShadowSettings"]

_HOST = "shadow"
_TRIES = 3
_LOOK_SECONDS = 0.2
_KEPT_SECONDS = 1.0
_COMPARED = Private("what a shadow has emitted, which nothing else reads")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSettings:
    """`epochs` is how many epochs must be equal. `volatile` is where its state lies, lost with it."""

    store: Path
    meta: str | None = None
    epochs: int = 100
    volatile: Path | None = None
    executor: ExecutorName | None = None


@dataclass(frozen=True, slots=True)
class _ShadowRight:
    """The right of a shadow: to follow, and to nothing else."""

    fragment: str
    seat: Seat = field(default_factory=lambda: Seat(Role.FOLLOW, replica=True))

    @property
    def lease(self) -> Lease:
        raise LeaseLostError(f"the shadow of '{self.fragment}' may not commit", cure="this is a bug in Holdfast")

    def renew(self) -> None:
        """There is nothing to lose."""

    def ready(self, role: Role | None) -> None:
        """Nobody counts on it."""

    def differs(self, epoch: int, what: str) -> None:
        """A shadow compares by itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass(slots=True)
class Shadow:
    """Follows until there is a verdict, or until `stop`. `told` gets the report whenever it has changed."""

    succession: Succession
    settings: ShadowSettings
    platform: Platform
    agreement: Agreement
    needs: FollowerNeeds
    told: Callable[[ShadowReport], None] = lambda report: None
    open_meta: Callable[[], MetaStore] | None = None
    report: ShadowReport = field(init=False)
    _rows: pl.DataFrame | None = None
    """What the shadow has emitted for the sink that differed first."""
    _runs: dict[str, FragmentRun] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _kept_at: float = 0.0

    def __post_init__(self) -> None:
        after, now = self.succession.after, time.time()
        self.report = ShadowReport(
            pipeline=after.pipeline, code=after.target, checksum=checksum_of(after.target),
            old=self.succession.before.target, process=this_process(), since=now, at=now, wanted=self.settings.epochs,
            compared={fragment.name: 0 for fragment in self.succession.fragments},
        )  # fmt: skip

    @property
    def differing(self) -> pl.DataFrame | None:
        """The rows that the shadow would have emitted where it differs."""
        return self._rows

    def follow(self) -> ShadowReport:
        """Until there is a verdict."""
        self._keep()
        threads = [self._start(fragment) for fragment in self.succession.fragments]
        try:
            while not self._over.wait(_LOOK_SECONDS):
                if self.platform.has_died():
                    self._end(state="failed", problem="its Spark session has died")
                agreed = self.agreement.look(list(self.succession.before.fragments))
                if all(one.ended for one in agreed.values()):
                    self._end(state="stopped", problem="the pipeline has ended")
        finally:
            self.stop("it was interrupted")
            for thread in threads:
                thread.join(60.0)
            for fragment in self.succession.fragments:
                self.needs.end(fragment.name)
                remove_tree(withheld_output(self.settings.store / fragment.name), _COMPARED)
        return self.report

    def stop(self, why: str = "it was stopped") -> None:
        """Without a verdict, if there is none yet."""
        self._end(state="stopped", problem=why)
        for run in list(self._runs.values()):
            run.stop()

    def _start(self, fragment: Fragment) -> Thread:
        return self.platform.start(lambda: self._serve(fragment), f"shadow-{fragment.name}")

    def _serve(self, fragment: Fragment) -> None:
        """A run that is left behind, or that others have planned again, restarts from the last commit."""
        failures, before = 0, -1
        while not self._over.is_set():
            try:
                self.needs.begin(fragment.name)
                run = self._runs[fragment.name] = self._build(fragment)
                if self._over.is_set():
                    run.close()
                    return
                run.live()
            except (EpochFailedError, LeaseLostError) as error:
                compared = self.report.compared[fragment.name]
                failures = failures + 1 if compared == before else 1
                before = compared
                if failures >= _TRIES:
                    self._end(state="failed", fragment=fragment.name, epoch=error.epoch, problem=str(error))
            except BaseException as error:  # noqa: BLE001 - whatever new code does is a verdict on it
                what = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
                epoch = error.epoch if isinstance(error, HoldfastError) else None
                self._end(state="failed", fragment=fragment.name, epoch=epoch, problem=what)

    def _build(self, fragment: Fragment) -> FragmentRun:
        settings = self.settings
        options = self.succession.after.options(
            fragment.name, settings.store, settings.meta, _HOST, settings.volatile, settings.executor
        )
        return FragmentRun(
            fragment.pipeline,
            self.platform.shared(len(self.succession.fragments)),
            options,
            authority=_ShadowRight(fragment.name),
            meta=None if self.open_meta is None else self.open_meta(),
            shadow=_Compares(self, fragment.name),
        )

    # what was found

    def compared(
        self, fragment: str, epoch: int, committed: EpochRecord, own: EpochRecord, program: Program, tiers: Tiers
    ) -> None:
        with self._lock:
            if self.report.state != "follows":
                return
            found = differences(committed.digest, own.digest)
            if not found and self.report.compared[fragment] + 1 >= self.settings.epochs:
                found = _state_differences(committed, own, program, tiers, self.succession.reshaped)
            if found:
                sink = next(iter(found))
                if sink in program.nodes and any(node.name == sink for node in program.sinks):
                    self._rows = withheld_rows(program, own, sink, epoch)
                self._set(state="differs", fragment=fragment, epoch=epoch, differences=found)
                return
            counts = {**self.report.compared, fragment: self.report.compared[fragment] + 1}
            sinks = {**self.report.sinks}
            for sink, digest in own.digest.items():
                if digest.rows:
                    sinks[sink] = sinks.get(sink, 0) + 1
            done = min(counts.values()) >= self.settings.epochs
            self._set(state="equal" if done else "follows", compared=counts, sinks=sinks)

    def _end(self, **found: object) -> None:
        with self._lock:
            if self.report.state == "follows":
                self._set(**found)

    def _set(self, **found: object) -> None:
        self.report = structs.replace(self.report, at=time.time(), **found)
        over = self.report.state != "follows"
        if over or self.report.at - self._kept_at >= _KEPT_SECONDS:
            self._keep()
        if over:
            self._over.set()
            for run in list(self._runs.values()):
                run.stop()

    def _keep(self) -> None:
        self._kept_at = self.report.at
        keep_shadow(self.settings.store, self.report)
        self.told(self.report)


@dataclass(frozen=True, slots=True)
class _Compares:
    """Tells the shadow what one of its runs has made."""

    shadow: Shadow
    fragment: str

    def compared(self, epoch: int, committed: EpochRecord, own: EpochRecord, program: Program, tiers: Tiers) -> None:
        self.shadow.needs.follows(self.fragment, epoch)
        self.shadow.compared(self.fragment, epoch, committed, own, program, tiers)


def _state_differences(
    committed: EpochRecord, own: EpochRecord, program: Program, tiers: Tiers, reshaped: frozenset[str]
) -> dict[str, str]:
    """By operator, how the state of the shadow differs, where that of the commit can be read here."""
    files, found = tiers.at("volatile"), {}
    if any(files.found(name) is None for name in committed.files()):
        return {}
    for node in (one for one in program.stateful if one.name not in reshaped):
        what = difference(*(state_digests(program, node, record, files) for record in (committed, own)))
        if what is not None:
            found[node.name] = f"state: {what}"
    return found
