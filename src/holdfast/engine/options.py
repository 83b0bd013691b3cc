"""How a pipeline is run: all options of a run, in one value.

`RunArguments` lists what can be passed by name to `RunOptions`, `hf.run` and `hf.start`; `RunOptions` holds the checked
values, with defaults. Both have the same names, except for `host`, which only the code that runs hosts sets. Live
objects, e.g. a Spark session, are not options but separate arguments.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

from holdfast.connect.sources.push import parse_size
from holdfast.durability.retained_epochs import RetentionRule
from holdfast.engine.scaling_rules import Scaling
from holdfast.epoch.deadline import DETECTION, SHORTEST_SECONDS
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.durations import Duration, parse_duration
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.policies import CheckpointPolicy, PolicyLike, as_policy
from holdfast.plan.executor_choice import ExecutorName
from holdfast.plan.partition_count import first_partitions
from holdfast.renamed import CALLBACKS
from holdfast.spans import seconds_of
from holdfast.store import Tiers, default_volatile, make_private, private_directory
from holdfast.store.location import local_path

__all__ = ["RunArguments", "RunOptions", "hosted", "options_with"]

AnyPath = str | os.PathLike[str]


class RunArguments(TypedDict, total=False):
    """What can be set about a run, by name; `RunOptions` says what each of them means."""

    store: AnyPath
    meta: str | None
    master: str | None
    conf: Mapping[str, str]
    fragments: Sequence[str]
    ingress: bool
    scaling: Scaling | None
    latency: Duration
    trigger: Duration | None
    least_rows: int
    most_rows: int
    partitions: int | None
    tasks: int
    overlap: bool
    executor: ExecutorName | None
    poll: Duration | None
    until_idle: bool
    max_epochs: int | None
    max_seconds: Duration | None
    checkpoint: PolicyLike
    interval: Duration
    recovery: Duration | None
    recovery_partitions: int | None
    failures_per_hour: float
    retain: int | str | timedelta
    volatile: AnyPath | None
    backups: Sequence[AnyPath]
    memory: int | str | None
    durable: bool
    deadline: Duration | None
    detection: Duration


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class RunOptions:
    """How a pipeline is run: `hf.run(pipeline, options)`. The same names can be given to `hf.run` one by one, as in
    `hf.run(pipeline, latency=0.5)`."""

    store: Path = Path(".holdfast")
    """The directory of everything durable: state, p-streams, logs and, by default, the meta store."""
    meta: str | None = field(default=None, repr=False)
    """The postgresql:// URL of the meta store; by default it is SQLite in the store."""
    master: str | None = None
    """The Spark master to open a session on; by default this machine."""
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of that session, over Holdfast's own."""
    fragments: tuple[str, ...] = ()
    """The fragments to run here, where others are run by another process; by default all."""
    ingress: bool = True
    """Whether to listen for push sources; otherwise `holdfast ingress` does."""
    scaling: Scaling | None = None
    """When operators get more or fewer partitions by themselves; by default never."""
    latency: float = 1.0
    """How long an epoch may take, in seconds or as in "20ms": it takes the input that is there, up to as many rows as
    fit. Under overload epochs grow."""
    trigger: Duration | None = None
    """Start at most one epoch per interval, as in "1 min", and take all input that has arrived. "available now" takes
    the input that is there, in epochs of the usual size, and stops."""
    least_rows: int = 20_000
    """How many rows an epoch may always take from the sources, if they are there, however long it takes."""
    most_rows: int = 1_000_000_000
    """The most that an epoch takes from all sources together; a limit below `least_rows` holds, too."""
    partitions: int | None = None
    """Partitions of a stateful operator that declares no number. By default 2; with a `latency` of up to 50
    ms and no `scaling`, one until that is too slow for the load."""
    tasks: int = 2
    """How many tasks read the sources."""
    overlap: bool = True
    """Whether an epoch may start to read before the previous one is committed."""
    executor: ExecutorName | None = None
    """What runs the epochs: "crew", long-running workers inside Spark jobs, so that an epoch takes milliseconds, or
    "jobs", a Spark job for each epoch. By default a crew if one is possible: it needs `tasks` + 2 slots of the session.
    Streaming DataFrames are run by jobs."""
    poll: float | None = None
    """The longest interval between two polls of sources without new input; after an epoch they are polled sooner. By
    default a tenth of the `latency`, from 50 to 250 ms."""
    until_idle: bool = False
    """Stop when the sources have nothing new, instead of waiting for more."""
    max_epochs: int | None = None
    """Stop after the epoch with this number, counted from the pipeline's first start."""
    max_seconds: float | None = None
    """Stop this many seconds after the start of the first epoch."""
    checkpoint: CheckpointPolicy | None = None
    """When state is made durable: a policy or its name; by default the cheapest one that meets the guarantee."""
    interval: float = 5.0
    """The seconds between checkpoints if the policy is chosen by cost."""
    recovery: Duration | None = None
    """How long restoring lost state may take, as in "2s"; by default as the pipeline's guarantee says."""
    recovery_partitions: int | None = None
    """Replay lost state with this many partitions per operator, and keep them."""
    failures_per_hour: float = 1.0
    """How often hosts are expected to fail, to weigh the cost of recovery against that of checkpoints."""
    retain: int | str | timedelta = "10s"
    """How long the state of epochs is kept for `hf.state` and `holdfast state`, as in "1 h": all of the last 16 epochs,
    and some of the earlier ones; or a number: the last epochs, all of them."""
    volatile: Path | None = None
    """The volatile tier, which may be lost with the host; by default in memory."""
    backups: tuple[Path, ...] = ()
    """Other stable locations that keep copies of the state."""
    memory: int | str | None = None
    """The budget of the volatile tier, in bytes or as in "2 GB"; state beyond it spills to disk."""
    durable: bool = True
    """Whether files are synced to disk; if not, they survive a process crash, but not a power failure."""
    deadline: Duration | None = None
    """How long an epoch, a source or a sink may make no progress, as in "1 min"; by default derived from how long it
    took before."""
    detection: float = DETECTION
    """The seconds after which a silent executor of a cluster is given up, if the run opens the session. Less than 3
    counts as 3."""
    host: str | None = field(default=None, repr=False)
    """The name of the host that runs it, where several share the store; see `hosted`."""

    def __init__(self, **given: Unpack[RunArguments]) -> None:
        known = {option.name: option for option in fields(self)}
        for name in given.keys() - known.keys():
            raise _unknown(name)
        values: dict[str, Any] = {
            name: {} if option.default is MISSING else option.default for name, option in known.items()
        } | dict(given)
        if values["trigger"] == "available now":
            values |= {"trigger": None, "until_idle": True}
        elif str(values["trigger"]).lower() in _ONCE:
            raise WrongTypeError(f"trigger={values['trigger']!r}", cure='write trigger="available now"')
        for name in _SECONDS:
            if isinstance(values[name], str | timedelta):
                values[name] = seconds_of(name, values[name])
        for name in ("store", "volatile"):
            values[name] = None if values[name] is None else local_path(values[name], name)
        values["backups"] = tuple(local_path(place, "backups") for place in _several("backups", values["backups"]))
        values["fragments"] = tuple(_several("fragments", values["fragments"]))
        values["conf"] = dict(values["conf"] or {})
        values["checkpoint"] = as_policy(values["checkpoint"])
        for name, value in values.items():
            object.__setattr__(self, name, value)
        # What makes no sense is an error here, not in the middle of a run.
        if self.executor not in (None, "crew", "jobs"):
            raise DeclarationError(f"there is no executor {self.executor!r}", cure="give 'crew' or 'jobs'")
        for name, (kind, least) in _NUMBERS.items():
            _check_number(name, values[name], kind, least, optional=known[name].default is None)
        self.memory_bytes, self.recovery_seconds, self.deadline_seconds, self.trigger_seconds, self.retention  # noqa: B018

    @property
    def first_partitions(self) -> int:
        """The partitions of operators that declare no number, at the pipeline's first start."""
        return first_partitions(self.partitions, self.latency, scaled=self.scaling is not None)

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes; None if it is not set."""
        return None if self.memory is None else parse_size("memory", self.memory)

    @property
    def retention(self) -> RetentionRule:
        """What `retain` asks for."""
        if isinstance(self.retain, int):
            _check_number("retain", self.retain, int, 1, optional=False)
            return RetentionRule(self.retain)
        return RetentionRule(seconds=seconds_of("retain", self.retain))

    @property
    def poll_seconds(self) -> float:
        """`poll`, or what follows from the latency: who can wait longer for a result is not looked for as often."""
        return min(max(self.latency / 10, _OFTENEST_POLL), _RAREST_POLL) if self.poll is None else self.poll

    @property
    def trigger_seconds(self) -> float | None:
        """`trigger` in seconds; None if it is not set."""
        if self.trigger is None:
            return None
        seconds = parse_duration(self.trigger) / 1e9
        if seconds <= 0:
            raise WrongTypeError(f"trigger={self.trigger!r}", cure='give a duration above 0, such as "1 min"')
        return seconds

    @property
    def recovery_seconds(self) -> float | None:
        """`recovery` in seconds; None if it is not set."""
        return Guarantee(self.recovery).recovery_seconds

    @property
    def deadline_seconds(self) -> float | None:
        """`deadline` in seconds; None if it is not set."""
        if self.deadline is None:
            return None
        seconds = parse_duration(self.deadline) / 1e9
        if seconds < SHORTEST_SECONDS:
            raise DeclarationError(
                f"a deadline of {seconds:g} s is too short to tell a hanging task from one that waits for a core",
                cure=f"give at least {SHORTEST_SECONDS:g}s",
            )
        return seconds

    def tiers(self, fragment: str, identity: str) -> Tiers:
        """Where the state of a fragment is stored. Stores may share a volatile directory and backup locations:
        `identity` keeps them apart."""
        root = self.store.resolve()
        for place in (root, *self.backups):
            make_private(place)
        volatile = default_volatile() if self.volatile is None else private_directory(self.volatile.resolve())
        if self.host is not None:
            volatile /= f"host-{self.host}"
        return Tiers(
            root / fragment / "state",
            volatile.resolve() / identity / fragment,
            tuple(place.resolve() / identity / fragment for place in self.backups),
            self.durable,
            self.host,
        )


_OFTENEST_POLL, _RAREST_POLL = 0.05, 0.25
_SECONDS = ("latency", "poll", "max_seconds", "interval", "detection")
"""What may be given as any duration, and is held in seconds."""
_ONCE = ("availablenow", "available_now", "once")
_Kind = type[int] | type[float]
_WHOLE: tuple[_Kind, float] = (int, 1)
_NUMBER: tuple[_Kind, float] = (float, 0)
_NUMBERS: dict[str, tuple[_Kind, float]] = {
    "partitions": _WHOLE, "tasks": _WHOLE, "least_rows": _WHOLE, "most_rows": _WHOLE,
    "max_epochs": _WHOLE, "recovery_partitions": _WHOLE, "latency": (float, 1e-6), "poll": _NUMBER,
    "max_seconds": _NUMBER, "interval": _NUMBER, "detection": _NUMBER, "failures_per_hour": _NUMBER,
}  # fmt: skip


def _check_number(name: str, value: Any, kind: _Kind, least: float, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise WrongTypeError(f"{name}={value!r}", cure="give a whole number" if kind is int else "give a number")
    if not value >= least:
        raise DeclarationError(f"{name}={value!r} must be at least {least:g}", cure=f"give {least:g} or more")


def _several(name: str, given: Any) -> Any:
    if isinstance(given, str | os.PathLike):
        raise WrongTypeError(f"{name}={str(given)!r}", cure=f"give a list: {name}=[{str(given)!r}]")
    return given


def _unknown(name: str) -> DeclarationError:
    known = list(RunArguments.__annotations__)
    close = difflib.get_close_matches(name, known, 1, cutoff=0.75)
    if name in CALLBACKS:
        cure = f"use observer=: an hf.Observer with the method '{CALLBACKS[name]}' receives it since 0.2"
    elif close:
        cure = f"did you mean '{close[0]}'?"
    else:
        cure = f"the options are: {', '.join(known)}; events go to an `observer=`"
    return DeclarationError(f"a run has no option '{name}'", cure=cure)


def options_with(options: RunOptions | None, named: RunArguments) -> RunOptions:
    """The options, with those instead that were given by name."""
    if options is not None and not isinstance(options, RunOptions):
        raise WrongTypeError(
            f"options are given as a {type(options).__name__}",
            cure="give an hf.RunOptions(store=...), or each by its name: hf.run(pipeline, store=...)",
        )
    if "host" in named:
        raise _unknown("host")
    return RunOptions(**named) if options is None else replace(options, **cast("dict[str, Any]", named))


def hosted(options: RunOptions, host: str | None) -> RunOptions:
    """The options on a host that shares the store with others."""
    return replace(options, **cast("dict[str, Any]", {"host": host}))
