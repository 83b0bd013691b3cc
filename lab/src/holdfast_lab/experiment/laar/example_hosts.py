"""Real runs of LAAR's example on two hosts with a core each, by `holdfast up`, and what their events tell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from holdfast.connect.sinks.file_sink import read_output
from holdfast.errors import EpochFailedError
from holdfast.replica.process_file import process_file
from holdfast_lab.experiment.laar.example_pipeline import PIPELINE, SOURCE, Example, write_example

__all__ = ["FRAGMENTS", "HOSTS", "HostRun", "events_of", "example_descriptor", "ran_on_hosts"]

HOSTS = ("a", "b")
FRAGMENTS = (f"{PIPELINE}.between", f"{PIPELINE}.out")
_SAMPLE_SECONDS = 1.0
_GIVEN_SECONDS = 2.0
_MEASURE_SECONDS = 5.0
_SETTLING_SECONDS = 5.0
"""From a command to when a replica that is not to process has handed over and ended its epochs."""
_PATIENCE = 120.0


def example_descriptor(
    low: float, high: float, cost: float, capacity: float | Sequence[float], target: float
) -> dict[str, Any]:
    """Of Fig. 1: two PEs in a row, one replica of each on each host."""
    first, second = FRAGMENTS
    room = capacity if isinstance(capacity, float) else list(capacity)
    return {
        "format": "laar-instance-1", "name": PIPELINE, "sources": [SOURCE], "pes": [first, second],
        "configs": [{"name": "Low", "prob": "4/5", "rates": [low]}, {"name": "High", "prob": "1/5", "rates": [high]}],
        "edges": [{"from": SOURCE, "to": first, "selectivity": 1, "cost": cost},
                  {"from": first, "to": second, "selectivity": 1, "cost": cost}],
        "n_hosts": 2, "K": room, "k": 2, "placement": [[0, 1], [0, 1]], "T": 1, "ic_target": target,
    }  # fmt: skip


@dataclass(slots=True)
class HostRun:
    """What came of a run. Times are seconds since its first epoch began."""

    example: Example
    began: float
    events: list[dict[str, Any]]
    cpu: dict[str, list[tuple[float, float]]]
    """CPU seconds of each host with all its processes, sampled."""
    tuples: int
    total: int

    def output(self) -> list[tuple[float, int]]:
        """When rows were put out, and how many."""
        told = self.told("commit", FRAGMENTS[-1])
        return [(event["committed"] - self.began, event["rows"]) for event in told]

    def put_out(self, begin: float, end: float) -> float:
        """Tuples per second."""
        return sum(rows for at, rows in self.output() if begin <= at < end) / (end - begin)

    def told(self, kind: str, fragment: str | None = None) -> list[dict[str, Any]]:
        return [
            event
            for event in self.events
            if event["event"] == kind and (fragment is None or event["fragment"] == fragment)
        ]

    def used(self, fragment: str, host: str, begin: float, end: float) -> float:
        """CPU seconds that a replica spent, by its tasks' own account."""
        return sum(
            float(event["cpu"])
            for event in self.told("processed", fragment)
            if event["host"] == host and begin <= event["at"] - self.began < end
        )

    def host_used(self, host: str, begin: float, end: float) -> float:
        """CPUs that a host took, with Java and all."""
        seen = [(at, spent) for at, spent in self.cpu[host] if begin <= at < end]
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]) if len(seen) > 1 else 0.0

    def activations(self) -> list[float]:
        """Seconds from each command that activated a replica to the moment in which it had run all that there was."""
        found = []
        active: dict[str, set[str]] = defaultdict(lambda: set(HOSTS))
        for event in self.told("command"):
            wanted = set(event["active"].split(", "))
            for host in wanted - active[event["fragment"]]:
                ready = [one["at"] for one in self.told("prepared", event["fragment"])
                         if one["host"] == host and one["at"] > event["at"]]  # fmt: skip
                later = [one["at"] for one in self.told("command", event["fragment"]) if one["at"] > event["at"]]
                over = min(later, default=self.events[-1]["at"])
                if min(ready, default=inf) <= over:
                    found.append(min(ready) - event["at"])
                elif over - event["at"] > _GIVEN_SECONDS:  # it had the time to get ready, and was not
                    found.append(inf)
            active[event["fragment"]] = wanted
        return found

    def idle_epochs(self) -> int:
        """Epochs that were processed where the last command did not say so, after the time it takes to follow it."""
        found = 0
        for event in self.told("processed"):
            orders = [one for one in self.told("command", event["fragment"]) if one["at"] <= event["at"]]
            if orders and event["at"] - orders[-1]["at"] > _SETTLING_SECONDS:
                found += event["host"] not in orders[-1]["active"].split(", ")
        return found

    def decisions(self) -> list[dict[str, Any]]:
        return [{**event, "at": event["at"] - self.began} for event in self.told("configuration")]


@dataclass(slots=True)
class _Up:
    """`holdfast up` in a process of its own."""

    place: Path
    process: subprocess.Popen[bytes]
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {name: [] for name in HOSTS})
    _spent: dict[str, dict[int, float]] = field(default_factory=lambda: {name: {} for name in HOSTS})

    def sample(self) -> None:
        """What each process of a host has spent; those that have ended count with what was seen last."""
        for name in HOSTS:
            with contextlib.suppress(OSError, ValueError, IndexError, psutil.NoSuchProcess):
                root = psutil.Process(int(process_file(self.place / "store", name).read_text().strip().split(":")[-2]))
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        times = process.cpu_times()
                        self._spent[name][process.pid] = times.user + times.system
                self.samples[name].append((time.time(), sum(self._spent[name].values())))

    def end(self) -> None:
        """Whatever happens nothing is left running."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        for name in HOSTS:
            with contextlib.suppress(OSError, ValueError, IndexError, psutil.NoSuchProcess):
                pid = int(process_file(self.place / "store", name).read_text().strip().split(":")[-2])
                for process in (*psutil.Process(pid).children(recursive=True), psutil.Process(pid)):
                    process.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def ran_on_hosts(
    place: Path,
    example: Example,
    descriptor: Mapping[str, Any] | None,
    say: Callable[[str], None],
    during: Callable[[Path], None] = lambda place: None,
) -> HostRun:
    """Run the example to its end: with a descriptor LAAR decides what is active; without, all replicas are or, where a
    completeness is asked for, LAAR decides by what it measures. `during` is called now and then."""
    place.mkdir(parents=True)
    file = write_example(place / "example.py", example)
    more: Sequence[str] = ["--scheme", "active replication"]
    if example.completeness is not None:
        more = ["--measure-every", str(_MEASURE_SECONDS)]
    if descriptor is not None:
        (place / "descriptor.json").write_text(json.dumps(descriptor))
        more = ["--descriptor", str(place / "descriptor.json")]
    log = place / "up.log"
    # What people have set for their own stores is not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment["TMPDIR"] = str(place)
    with log.open("wb") as lines:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "up", str(file), "--store", str(place / "store"), "--pin",
             "--events", str(place / "events"), "--volatile", str(place / "volatile"), "--partitions", "1",
             "--tasks", "1", "--latency", str(example.tick), "--no-durable", *more],
            stdout=lines, stderr=lines, stdin=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
    made = _Up(place, process)
    try:
        deadline = time.monotonic() + 3 * example.tide.period + _PATIENCE
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise EpochFailedError(f"the run did not end in time:\n{_tail(log)}", cure="run it again")
            made.sample()
            during(place)
            time.sleep(_SAMPLE_SECONDS)
    finally:
        made.end()
    if process.returncode:
        raise EpochFailedError(f"`holdfast up` failed:\n{_tail(log)}", cure="see what it said")
    events = events_of(place)
    began = min(event["started"] for event in events if event["event"] == "commit")
    rows = read_output(Path(example.output), "parquet")
    say(f"{len(events):,} events, {rows.height:,} tuples put out")
    cpu = {name: [(at - began, spent) for at, spent in found] for name, found in made.samples.items()}
    return HostRun(example, began, events, cpu, rows["number"].n_unique(), int(rows.select(pl.len()).item()))


def events_of(place: Path) -> list[dict[str, Any]]:
    """All that hosts have told, in its order; a line that was cut off by a kill is left out."""
    found = []
    for path in (place / "events").glob("*.events"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return sorted(found, key=lambda event: float(event["at"]))


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:])
