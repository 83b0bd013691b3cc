"""A campaign: the fault-free run, then as many runs as it takes to make all faults, each compared with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from holdfast.errors import EpochFailedError
from holdfast.plan.executor_choice import ExecutorName
from holdfast.plurals import counted
from holdfast.ui.figures import quantile
from holdfast_lab.chaos.campaign_ends import output_of, prepare_output, thinned, write_input
from holdfast_lab.chaos.connector_servers import ConnectorServers
from holdfast_lab.chaos.fault_plan import DRIVERS, CommitSeen, Kind, PlannedFault, Strike, plan_faults
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.output_difference import Difference, check_expected, compare
from holdfast_lab.chaos.victim import VictimSettings, rows_per_epoch
from holdfast_lab.chaos.victim_process import VictimProcess
from holdfast_lab.workloads.queries import query

__all__ = ["Campaign", "CampaignResult", "run_without_faults"]

_POLL = 0.01
_PATIENCE = 180.0
_PAUSE = 0.2
_MOST_PARTITIONS = 6
_LEAST_EPOCHS, _EPOCHS_PER_FAULT, _MOST_EPOCHS = 24, 8, 160

Say = Callable[[str], None]


@dataclass(slots=True)
class CampaignResult:
    """What all runs under faults gave, against the run without."""

    seed: int
    expected_rows: int = 0
    rounds: int = 0
    strikes: list[Strike] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return all(difference.equal for difference in self.differences)

    def recovery_ms(self, kind: str | None = None) -> dict[str, float | None]:
        """Median and 95th percentile of the time from a fault to its end, of one kind or all."""
        times = [s.seconds * 1_000 for s in self.strikes if s.seconds is not None and kind in (None, s.kind)]
        found = {name: quantile(times, share) for name, share in (("p50", 0.5), ("p95", 0.95))}
        return {name: None if value is None else round(value, 1) for name, value in found.items()}

    def to_json(self) -> dict[str, Any]:
        kinds = sorted({strike.kind for strike in self.strikes})
        return {
            "faults": len(self.strikes),
            "lost": sum(difference.lost for difference in self.differences),
            "duplicated": sum(difference.duplicated for difference in self.differences),
            "equal": self.equal,
            "recovery_ms": self.recovery_ms(),
            "by_kind": {
                kind: {"faults": sum(s.kind == kind for s in self.strikes), **self.recovery_ms(kind)} for kind in kinds
            },
            "rounds": self.rounds,
            "output_rows": self.expected_rows,
            "seed": self.seed,
        }


class Campaign:
    """Runs a query under faults. Everything it writes is under `place`, which the caller removes."""

    def __init__(
        self,
        name: str,
        faults: int,
        seed: int,
        kinds: Sequence[Kind],
        place: Path,
        master: str | None,
        say: Say,
        *,
        persist: bool = False,
        checkpoint: str = "auto",
        executor: ExecutorName | None = None,
        source: str = "replay",
        sink: str = "parquet",
        servers: ConnectorServers | None = None,
    ) -> None:
        """With `persist` the events go through a p-stream wherever there are faults. The run without faults has none:
        a p-stream must not change the output either. `servers` are those of `source` and `sink`."""
        asked = query(name)
        epochs = min(_MOST_EPOCHS, _LEAST_EPOCHS + _EPOCHS_PER_FAULT * faults)
        size = rows_per_epoch(asked)
        self._every = 1 if source == "replay" else thinned(size)
        size //= self._every
        self._settings = VictimSettings(
            query=asked.name,
            rows=epochs * size,
            epoch_rows=size,
            pause=_PAUSE,
            home="",
            input=str(place / "input"),
            master=master,
            checkpoint=checkpoint,
            executor=executor,
            source=source,
            sink=sink,
            servers={} if servers is None else servers.addresses,
        )
        self._broker = None if servers is None else servers.broker
        self._persist = persist
        self._place = place
        self._say = say
        self._plan = plan_faults(faults, kinds, seed)
        self.result = CampaignResult(seed)

    def run(self) -> CampaignResult:
        """Make all faults and compare all outputs."""
        if self._settings.source != "replay":
            self._say(f"{self._settings.rows:,} rows are written for the source")
            write_input(self._settings, self._every)
        quiet = self._victim("fault-free", pause=0.0, persist=False)
        self._say(f"the fault-free run: {self._settings.rows:,} rows in epochs of {self._settings.epoch_rows:,}")
        expected = run_without_faults(quiet)  # before any fault is made for nothing
        self.result.expected_rows = expected.height
        waiting = list(self._plan)
        while waiting:
            self.result.rounds += 1
            victim = self._victim(f"round-{self.result.rounds}", self._settings.pause, self._persist)
            self._say(f"round {self.result.rounds}: {counted(len(waiting), 'fault')} to make")
            made = _Round(victim, waiting, self._say, self._broker).run()
            if not made:
                raise EpochFailedError(
                    f"no process of kind '{waiting[0].kind}' was found to kill in a whole run",
                    cure="leave the kind out of --kinds",
                )
            difference = compare(output_of(victim.settings), expected)
            self.result.strikes += made
            self.result.differences.append(difference)
            self._say(
                f"round {self.result.rounds}: {counted(len(made), 'fault')}, output "
                + ("equals the fault-free run's" if difference.equal else f"DIFFERS, {difference}")
            )
            waiting = waiting[len(made) :]
        return self.result

    def _victim(self, name: str, pause: float, persist: bool) -> VictimProcess:
        settings = replace(self._settings, home=str(self._place / name), pause=pause, persist=persist)
        prepare_output(settings)
        return VictimProcess(settings, self._place / "t")


def run_without_faults(victim: VictimProcess) -> pl.DataFrame:
    """The output to compare with: it must have rows."""
    _Round(victim, [], lambda line: None).run()
    expected = output_of(victim.settings)
    check_expected(expected)
    return expected


class _Round:
    """One run from its start to the end of its input, however often it is killed."""

    def __init__(
        self, victim: VictimProcess, faults: Sequence[PlannedFault], say: Say, broker: KafkaServer | None = None
    ) -> None:
        self._victim = victim
        self._broker = broker
        self._waiting = list(faults)
        self._say = say
        self._strikes: list[Strike] = []
        self._committed_since_strike: float | None = None
        self._epoch = 0

    def run(self) -> list[Strike]:
        """The faults that could be made before the input ended."""
        victim = self._victim
        victim.start()
        progress = time.monotonic()
        try:
            while True:
                ended = victim.ended()
                if self._listen():
                    progress = time.monotonic()
                if ended:
                    break
                if self._waiting and self._due(self._waiting[0], time.time()) and self._strike(self._waiting[0]):
                    self._waiting.pop(0)
                    progress = time.monotonic()
                if time.monotonic() - progress > _PATIENCE:
                    raise EpochFailedError(
                        f"no commit for {_PATIENCE:.0f} s:\n{victim.log_tail()}",
                        cure="run again with the same seed; the machine may be too busy",
                    )
                time.sleep(_POLL)
        finally:
            victim.kill_all()
        for strike in self._strikes:
            strike.on_end(time.time())
        return self._strikes

    def _listen(self) -> bool:
        """Take in what the victim told; whether it was anything."""
        events = self._victim.events()
        for event in events:
            if event["event"] == "session":
                for strike in self._strikes:
                    strike.on_session(event["pid"], event["at"])
            elif event["event"] == "commit" and event["fragment"] == self._victim.settings.fragment:
                commit = CommitSeen(event["pid"], event["epoch"], event["started"], event["committed"])
                self._epoch = commit.epoch
                if self._committed_since_strike is None and commit.committed > self._last_strike():
                    self._committed_since_strike = commit.committed
                for strike in self._strikes:
                    strike.on_commit(commit)
        return bool(events)

    def _last_strike(self) -> float:
        return self._strikes[-1].at if self._strikes else 0.0

    def _due(self, fault: PlannedFault, now: float) -> bool:
        due = fault.due(self._victim.started_at, self._last_strike(), self._committed_since_strike)
        return due is not None and now >= due

    def _strike(self, fault: PlannedFault) -> bool:
        """Make the fault, if there is a process to kill. A killed driver is started again at once."""
        victim = self._victim
        strike = Strike(fault.kind, time.time(), victim.pid)
        what = _WHAT.get(fault.kind, "")
        if fault.kind in DRIVERS:
            if fault.kind == "host":
                victim.lose_host()
            elif fault.kind == "driver":
                victim.kill_all()
            elif not victim.kill_java():
                return False
            self._listen()  # what it told before it died, while the strikes before this one are the last
            victim.start()
        elif fault.kind == "scale":
            asked = victim.scale(fault.pick, 1 + int(fault.moment * _MOST_PARTITIONS))
            if asked is None:
                return False
            what = f"scale {asked}"
        elif fault.kind == "broker":
            assert self._broker is not None
            self._broker.kill()
            self._broker.start()
        elif not victim.strike(fault.kind, fault.pick):
            return False
        self._strikes.append(strike)
        self._committed_since_strike = None
        self._say(f"  {what} after epoch {self._epoch}")
        return True


_WHAT = {
    "driver": "kill -9 of driver, Java and workers",
    "host": "kill -9 of driver, Java and workers, and loss of the volatile tier",
    "java": "kill -9 of Java",
    "worker": "kill -9 of a Python worker",
    "workers": "kill -9 of all Python workers",
    "stop": "SIGSTOP of a Python worker",
    "cut": "cut of a connection between two workers",
    "unreachable": "all packets of other workers to one worker dropped",
    "memory": "no more memory for a Python worker",
    "executor": "kill -9 of an executor",
    "broker": "kill -9 of the broker, which is started again,",
}
