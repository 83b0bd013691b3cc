"""A campaign against hosts: one long run on several of them, fault after fault, whose output must be that of a run by
one process without faults, over the same rows.

Hosts are kept over all faults. Input has no end until the last fault is made: it comes slowly while hosts get ready
again, and fast around a fault.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.connect.sinks.file_sink import read_output
from holdfast.errors import EpochFailedError
from holdfast.plurals import counted
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.supervisor import described
from holdfast_lab.chaos.campaign import CampaignResult, Say, run_without_faults
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.fault_plan import Strike
from holdfast_lab.chaos.fleet import Fleet
from holdfast_lab.chaos.gate import Gate
from holdfast_lab.chaos.host_faults import HostFault, HostKind, plan_host_faults
from holdfast_lab.chaos.host_strikes import MadeFault, Striker
from holdfast_lab.chaos.host_view import HostView
from holdfast_lab.chaos.hosted_pipeline import GATE
from holdfast_lab.chaos.loopback_proxy import LoopbackProxy
from holdfast_lab.chaos.output_difference import compare
from holdfast_lab.chaos.victim import VictimSettings, rows_per_epoch
from holdfast_lab.chaos.victim_process import VictimProcess
from holdfast_lab.workloads.queries import query

__all__ = ["HostCampaign", "HostCampaignSettings"]

_POLL = 0.02
_LOOK = 0.2
_SLOW, _FAST = 2.0, 0.15
_PATIENCE = 420.0
_PATIENCE_TO_BE_WHOLE = 240.0
_MOMENT_SECONDS = 2.0
_LAST_EPOCHS = 20
_VIEW_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCampaignSettings:
    """What to run on how many hosts, and what is done to them. `mixed` has the schemes turn while it runs."""

    query: str
    faults: int
    seed: int
    kinds: Sequence[HostKind]
    hosts: int = 2
    scheme: Scheme = ACTIVE_STANDBY
    mixed: bool = False
    database: bool = False
    checkpoint: str = "auto"
    persist: bool = False
    master: str | None = None
    detection: float = 2.0


@dataclass(slots=True)
class HostCampaign:
    """Everything it writes is under `place`, and `volatile` for what is in memory; the caller removes both."""

    settings: HostCampaignSettings
    place: Path
    volatile: Path
    say: Say
    result: CampaignResult = field(init=False)
    _victim: VictimSettings = field(init=False)
    _fleet: Fleet = field(init=False)
    _view: HostView = field(init=False)
    _striker: Striker = field(init=False)
    _undo: tuple[float, MadeFault] | None = None
    _progress: tuple[int, float] = (0, 0.0)

    def __post_init__(self) -> None:
        given = self.settings
        asked = query(given.query)
        self.result = CampaignResult(given.seed)
        self._victim = VictimSettings(
            query=asked.name,
            rows=0,
            epoch_rows=rows_per_epoch(asked),
            pause=0.0,
            home=str(self.place / "hosts"),
            input=str(self.place / "input"),
            master=given.master,
            persist=given.persist,
            checkpoint=given.checkpoint,
        )

    def run(self) -> CampaignResult:
        """Make all faults, let the input end, and compare."""
        plan = plan_host_faults(self.settings.faults, self.settings.kinds, self.settings.seed)
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._pace(_FAST)
            self._fleet.start(self.settings.scheme.name)
            self.say(f"started: {counted(self.settings.hosts, 'host')}, {self.settings.scheme.name}")
            self._until(self._committed_since(0), "the first commit")
            for number, fault in enumerate(plan, 1):
                self._fault(number, fault)
            rows = self._finish()
        self._compare(rows)
        return self.result

    def _open(self, stack: contextlib.ExitStack) -> None:
        given = self.settings
        arguments = ["--hosts", str(given.hosts), "--checkpoint", given.checkpoint, "--detection", str(given.detection)]
        arguments += ["--master", given.master] if given.master is not None else []
        server: DatabaseServer | None = None
        networks: dict[str, LoopbackProxy] = {}
        where: Path | str = self._victim.store
        if given.database:
            server = stack.enter_context(DatabaseServer())
            where = f"{server.url}?timeout={_VIEW_SECONDS:g}"
            arguments += ["--meta", server.url]
            for number in range(given.hosts):
                host, network = chr(ord("a") + number), stack.enter_context(LoopbackProxy(server.port))
                arguments += ["--meta-of", f"{host}={server.url_at(network.port)}"]
                networks[host] = network
        self._fleet = Fleet(self._victim, self.volatile, self.place / "t", arguments)
        stack.callback(self._fleet.kill_all)
        self._view = HostView(where, self._victim.fragment)
        stack.callback(self._view.close)
        self._striker = Striker(self._fleet, self._view, given.detection, server, networks)

    def _fault(self, number: int, fault: HostFault) -> None:
        """Make the next fault, and wait until epochs are committed again."""
        self._pace(_SLOW)
        if not fault.in_haste:
            self._wait_until_whole()
        self._pace(_FAST)
        self._until(self._committed_since(self._view.committed()), "a commit since the last fault")
        self._rest(fault.moment * _MOMENT_SECONDS)
        made = self._strike(fault)
        strike = Strike(fault.kind, time.time(), driver=0)
        self._undo = (time.monotonic() + made.after, made) if made.undo is not None else None
        epoch = self._view.committed()
        self.result.strikes.append(strike)
        scheme = self._view.scheme.name
        self.say(f"  {number}/{self.settings.faults} {made.what}, after epoch {epoch}, {scheme}")
        self._until(self._committed_since(epoch), "a commit after the fault")
        strike.recovered = time.time()
        after = strike.recovered - strike.at
        self.say(f"      the next commit after {after:.1f} s, by {self._view.primary() or 'a host that left'}")
        self._until(lambda: self._undo is None, "the end of the fault")
        self._until(self._fleet.looks_after, "the supervisor")

    def _strike(self, fault: HostFault) -> MadeFault:
        found: list[MadeFault] = []

        def try_it() -> bool:
            made = self._striker.strike(fault)
            found.extend([made] if made is not None else [])
            return made is not None

        self._until(try_it, f"somebody for a fault of kind '{fault.kind}'")
        return found[0]

    def _finish(self) -> int:
        """Let the input end; the number of its rows."""
        self._wait_until_whole()
        rows = (self._view.furthest() + _LAST_EPOCHS) * self._victim.epoch_rows
        Gate(0.0, rows).write(Path(self._victim.home) / GATE)
        self.say(f"all faults are made; the input ends after {rows:,} rows")
        self._until(self._fleet.ended, "the end")
        return rows

    def _compare(self, rows: int) -> None:
        quiet = replace(self._victim, rows=rows, persist=False, home=str(self.place / "fault-free"))
        self.say("the same rows without faults")
        expected = run_without_faults(VictimProcess(quiet, self.place / "t"))
        difference = compare(read_output(self._victim.output, "parquet"), expected)
        self.result.rounds = 1
        self.result.expected_rows = expected.height
        self.result.differences.append(difference)
        if not difference.equal:
            self.say(f"the output DIFFERS: {difference}")

    # waiting

    def _pace(self, pause: float) -> None:
        Gate(pause).write(Path(self._victim.home) / GATE)

    def _committed_since(self, epoch: int) -> Callable[[], bool]:
        return lambda: self._view.committed() > epoch

    def _wait_until_whole(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < _PATIENCE_TO_BE_WHOLE:
            if self._view.whole(self._striker.dead):
                return
            self._tick(_LOOK)
        self.say(f"      not whole after {_PATIENCE_TO_BE_WHOLE:.0f} s: {self._described()}")

    def _described(self) -> str:
        return "; ".join(described(fragment) for fragment in self._view.agreed().values())

    def _until(self, done: Callable[[], bool], what: str) -> None:
        began = time.monotonic()
        while not done():
            self._tick(_POLL)
            if time.monotonic() - max(began, self._progress[1]) > _PATIENCE:
                raise EpochFailedError(
                    f"gave up waiting for {what}, {_PATIENCE:.0f} s: {self._described()}\n{self._fleet.log_tail()}",
                    cure="run again with the same seed; the machine may be too busy",
                )

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick(_POLL)

    def _tick(self, seconds: float) -> None:
        """Let time pass: faults that do not last are undone when it is time."""
        time.sleep(seconds)
        if self._undo is not None and time.monotonic() >= self._undo[0]:
            made, self._undo = self._undo[1], None
            assert made.undo is not None
            self.say(f"      {made.undo()}")
        committed = self._view.committed()
        if committed != self._progress[0]:
            self._progress = (committed, time.monotonic())
        self._fleet.ended()  # says so if it ended badly
