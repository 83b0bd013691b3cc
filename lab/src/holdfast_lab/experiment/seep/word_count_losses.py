"""Losing the host of the word counter while its window is full, and following how it comes back.

As in the paper only the host of the word counter is lost: where the pipeline is cut behind the splitter, the splitter
runs on, in a process of its own. What the hosts tell is followed by `HostProgress`, which is made of events alone.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

import polars as pl

from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import EpochFailedError
from holdfast.graph.policies import DELTA, as_policy
from holdfast_lab.chaos.output_difference import compare
from holdfast_lab.experiment.seep.word_count_host import WordCountHost, WordCountSettings
from holdfast_lab.workloads.words import fragments, word_count

__all__ = ["HostLoss", "HostProgress", "WordCountRun", "keeps_up", "loss_row", "shares", "wrong_rows"]

_POLL = 0.01
_PATIENCE = 150.0
_WINDOW_MS = 30_000
_BEHIND = 2.5
"""A run keeps up if it is no more than so many takes behind what has arrived."""


@dataclass(frozen=True, slots=True)
class HostLoss:
    """How a host came back. `since` is how long ago its last checkpoint was made, if it makes any."""

    start: float
    recovery: float
    phases: Mapping[str, float]
    replayed: int
    units: int
    bytes: int
    since: float | None
    kept_up: bool


@dataclass(slots=True)
class HostProgress:
    """What a host has told since its last start; takes and times of rows since its first."""

    number: int = 0
    arrived: float = 0.0
    seen: int = 0
    commits: int = 0
    warm_at: float | None = None
    checkpoint_at: float | None = None
    recovered: Mapping[str, Any] | None = None

    def restarted(self) -> None:
        self.warm_at = self.checkpoint_at = self.recovered = None
        self.commits = 0

    def on_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "taken":
            self.number, self.arrived = event["number"], event["arrived"]
        elif kind == "commit":
            self.seen = max(self.seen, event["seen"])
            self.commits += 1
        elif kind == "checkpoint":
            self.checkpoint_at = event["at"]
        elif kind == "warm":
            self.warm_at = event["at"]
        elif kind == "recovered":
            self.recovered = event


def keeps_up(source: HostProgress, counter: HostProgress, pause: float, now: float) -> bool:
    """Whether the window is full and the words of all but the newest takes are counted."""
    taken = source.number > 0 and now - source.arrived <= _BEHIND * pause
    counted = counter.seen >= (source.number - _BEHIND) * pause * 1_000
    return taken and counted and counter.seen >= _WINDOW_MS


class WordCountRun:
    """The hosts of one word count: `with` starts them, and leaves none behind."""

    def __init__(self, settings: WordCountSettings, temporary: Path, *, cut: bool) -> None:
        self.settings = settings.in_role("counts" if cut else "all")
        self._temporary = temporary
        self.counter = WordCountHost(self.settings, temporary)
        self.splitter = WordCountHost(self.settings.in_role("split"), temporary) if cut else None
        self._counter, self._splitter = HostProgress(), HostProgress()
        self._kept_up = True
        self._up_at = 0.0

    def __enter__(self) -> WordCountRun:
        for host in self._hosts():
            host.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts():
            host.kill_all()

    def _hosts(self) -> Iterable[WordCountHost]:
        return (self.counter,) if self.splitter is None else (self.splitter, self.counter)

    def _follow(self) -> bool:
        """Whether anything was told."""
        anything = False
        for host, followed in ((self.counter, self._counter), (self.splitter, self._splitter)):
            if host is not None:
                host.ended()  # raises if it has failed
                for event in host.events():
                    followed.on_event(event)
                    anything = True
        return anything

    def _wait_or_fail(self, until: Callable[[], bool], what: str) -> None:
        """Wait for as long as the hosts tell anything."""
        told = time.monotonic()
        while not until():
            time.sleep(_POLL)
            now = time.monotonic()
            if self._follow():
                told = now
            if now - told > _PATIENCE:
                raise EpochFailedError(
                    f"{what} does not come; nothing was told for {_PATIENCE:.0f} s:\n{self.counter.log_tail()}",
                    cure="run it again; the machine may be too busy",
                )

    def fill(self, patience: float = 40.0) -> bool:
        """Wait until the window is full, and for a while until the run keeps up; whether it does."""
        source = self._counter if self.splitter is None else self._splitter
        self._wait_or_fail(lambda: self._counter.seen >= _WINDOW_MS, "a full window")
        deadline = time.monotonic() + patience

        def up() -> bool:
            self._kept_up = keeps_up(source, self._counter, self.settings.pause, time.time())
            return self._kept_up

        self._wait_or_fail(lambda: up() or time.monotonic() > deadline, "a run that keeps up")
        self._up_at = time.time()
        return self._kept_up

    def wait_for(self, share: float) -> float | None:
        """Wait until this share of the interval has passed since a checkpoint; without an interval, of an epoch.
        Returns how long ago the last checkpoint was made.

        A run that catches up does many epochs in a second, so the checkpoint must be of the time after that."""
        policy = as_policy(self.settings.policy)
        if policy is None or not policy.copy_seconds:
            time.sleep(share * self.settings.pause)
            return None
        followed = self._counter
        self._wait_or_fail(
            lambda: (
                followed.checkpoint_at is not None
                and followed.checkpoint_at >= self._up_at
                and time.time() - followed.checkpoint_at >= share * policy.copy_seconds
            ),
            "a checkpoint",
        )
        assert followed.checkpoint_at is not None
        return time.time() - followed.checkpoint_at

    def lose(self, share: float) -> HostLoss:
        """Lose the counter's host at a moment when its window is full, and let it come back."""
        self.fill()
        since = self.wait_for(share)
        self.counter.lose_host()
        self._follow_rest()
        return self._come_back(self.counter, self._counter, since)

    def _follow_rest(self) -> None:
        for event in self.counter.events():  # what it told before it was lost
            self._counter.on_event(event)

    def _come_back(self, host: WordCountHost, followed: HostProgress, since: float | None) -> HostLoss:
        followed.restarted()
        host.start()
        self._wait_or_fail(lambda: followed.recovered is not None, "recovery")
        told = followed.recovered
        assert told is not None
        assert followed.warm_at is not None
        return HostLoss(
            followed.warm_at - host.started_at, told["at"] - followed.warm_at, told["seconds"], told["replayed"],
            told["units"], told["bytes"], since, self._kept_up,
        )  # fmt: skip

    def go_on(self, epochs: int = 2) -> None:
        """Until so many more epochs are committed, so that there is output of after the loss."""
        self._wait_or_fail(lambda: self._counter.commits >= epochs, "a commit")

    def freeze(self, place: Path) -> None:
        """Lose all hosts and keep what is left of them, to come back from it several times."""
        for host in self._hosts():
            host.lose_host()
        self._follow_rest()
        shutil.copytree(self.settings.home, place)

    def thaw(self, place: Path, since: float | None, partitions: int | None) -> HostLoss:
        """Come back from what was kept, with the counter alone, and count what the splitter had split."""
        home = Path(self.settings.home)
        shutil.rmtree(home)
        shutil.copytree(place, home)
        for events in home.glob("events-*.jsonl"):
            events.unlink()
        self.splitter = None
        asked = replace(self.settings, recovery_partitions=partitions, until_idle=True)
        self.counter = WordCountHost(asked, self._temporary)
        loss = self._come_back(self.counter, self._counter, since)
        self._wait_or_fail(self.counter.ended, "the end")
        return loss


def wrong_rows(spark: Any, runs: Sequence[WordCountSettings], place: Path) -> dict[str, int]:
    """Run what the hosts ran without a fault, and count the rows of each output that are lost or too many, by home.

    Results do not depend on how input is cut into epochs, so the run without a fault has few large ones. An output ends
    where its last host did; all windows until then are compared.
    """

    outputs = {run.home: read_output(run.output, "parquet") for run in runs}
    wrong: dict[str, int] = {}
    for made in {run.made: None for run in runs}:
        own = [run for run in runs if run.made == made]
        ends = {run.home: max(outputs[run.home]["window_end"]) for run in own if outputs[run.home].height}
        rows = round(max(ends.values(), default=0) / 1_000 * made.rate) + 1
        home = place / f"fault-free-{made.rate:g}-{made.words}"
        size = max(1, rows // 5)
        FragmentRun(
            word_count(fragments(made, rows), parquet(home / "out"), cut=False, pipeline_name="fault-free"),
            SparkPlatform(spark),
            RunOptions(store=home / "store", least_rows=size, most_rows=size, durable=False, checkpoint=DELTA),
        ).run()
        expected = read_output(home / "out", "parquet")
        for run in own:
            if run.home not in ends:
                wrong[run.home] = expected.height
                continue
            difference = compare(outputs[run.home], expected.filter(pl.col("window_end") <= ends[run.home]))
            wrong[run.home] = difference.lost + difference.duplicated
        shutil.rmtree(home)
    return wrong


def loss_row(losses: Sequence[HostLoss]) -> dict[str, Any]:
    """The figures of several losses: means, as in the paper, and the slowest."""
    since = [loss.since for loss in losses if loss.since is not None]
    return {
        "losses": len(losses),
        "recovery_s": fmean(loss.recovery for loss in losses),
        "recovery_max_s": max(loss.recovery for loss in losses),
        "replayed": fmean(loss.replayed for loss in losses),
        "loaded_mb": fmean(loss.bytes for loss in losses) / 1e6,
        "replay_s": fmean(loss.phases["replay"] for loss in losses),
        "data_s": fmean(loss.phases["data"] for loss in losses),
        "start_s": fmean(loss.start for loss in losses),
        "since_checkpoint_s": fmean(since) if since else None,
        "kept_up": all(loss.kept_up for loss in losses),
    }


def shares(chance: random.Random, losses: int) -> list[float]:
    """The moments within an interval at which hosts are lost: one in each part of it."""
    return [(number + chance.random()) / losses for number in range(losses)]
