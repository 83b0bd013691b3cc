"""How a pipeline is run: all that can be set about a run, in one value.

`RunArguments` says what may be given by name to `RunOptions`, `hf.run` and `hf.start`; `RunOptions` holds it, checked,
with its defaults. Both have the same names, but for the `host`, which is said by those who run hosts. What is an object
that lives, e.g. a Spark session, is no option but an argument beside them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast

from holdfast.connect.sources.push import parse_size
from holdfast.engine.scaling import Scaling
from holdfast.epoch.deadline import DETECTION, SHORTEST_SECONDS
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.durations import Duration, parse_duration
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.policies import CheckpointPolicy, PolicyLike, as_policy
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
    partitions: int
    tasks: int
    overlap: bool
    executor: Literal["jobs", "crew"]
    poll: Duration
    until_idle: bool
    max_epochs: int | None
    max_seconds: Duration | None
    checkpoint: PolicyLike
    interval: Duration
    recovery: Duration | None
    recovery_partitions: int | None
    failures_per_hour: float
    retain: int
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
    """The seconds an epoch may take: epochs are made as large as fit."""
    trigger: Duration | None = None
    """Begin an epoch at most so often, as in "1 min", and take all that has come. "available now" takes what is there,
    in epochs of the usual size, and stops."""
    least_rows: int = 20_000
    """The least that an epoch is planned to take from the sources, however long it takes."""
    most_rows: int = 1_000_000_000
    """The most that an epoch takes from the sources."""
    partitions: int = 2
    """Partitions of a stateful operator that does not say how many it has."""
    tasks: int = 2
    """How many tasks read the sources."""
    overlap: bool = True
    """Whether an epoch may begin to read before the one before it is committed."""
    executor: Literal["jobs", "crew"] = "jobs"
    """What runs the epochs: a Spark job for each, or a crew: workers that stay, as the tasks of one Spark job, so that
    an epoch takes milliseconds. A crew holds `tasks` slots of the session; where these are missing, jobs run."""
    poll: float = 0.05
    """The seconds between two looks at sources that have nothing new."""
    until_idle: bool = False
    """Stop when the sources have nothing new, instead of waiting for more."""
    max_epochs: int | None = None
    """Stop after the epoch of this number, counted from the pipeline's first start."""
    max_seconds: float | None = None
    """Stop so many seconds after the start of the first epoch."""
    checkpoint: CheckpointPolicy | None = None
    """When state is made durable: a policy or its name; by default as costs least and keeps the guarantee."""
    interval: float = 5.0
    """The seconds between checkpoints where the policy is chosen by cost."""
    recovery: Duration | None = None
    """How long it may take to have lost state back, as in "2s"; by default as the pipeline's guarantee says."""
    recovery_partitions: int | None = None
    """Replay lost state with so many partitions per operator, and go on with them."""
    failures_per_hour: float = 1.0
    """How often hosts are expected to fail, to weigh the cost of recovery against that of checkpoints."""
    retain: int = 16
    """How many epochs of state are kept for `hf.state` and `holdfast state`."""
    volatile: Path | None = None
    """The volatile tier, which the loss of the host may take; by default in memory."""
    backups: tuple[Path, ...] = ()
    """Other stable locations that keep copies of the state."""
    memory: int | str | None = None
    """The budget of the volatile tier, in bytes or as in "2 GB": what is beyond it spills to disk."""
    durable: bool = True
    """Whether files are synced to disk; otherwise they survive a crash of the process, not a loss of power."""
    deadline: Duration | None = None
    """How long an epoch, a source or a sink may show no progress, as in "1 min"; by default as long as follows from
    what it has taken before."""
    detection: float = DETECTION
    """The seconds after which a silent executor of a cluster is given up, where the session is opened for the run. Less
    than 3 counts as 3."""
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
        if self.executor not in ("jobs", "crew"):
            raise DeclarationError(f"there is no executor {self.executor!r}", cure="give 'jobs' or 'crew'")
        for name, (kind, least) in _NUMBERS.items():
            _check_number(name, values[name], kind, least, optional=known[name].default is None)
        self.memory_bytes, self.recovery_seconds, self.deadline_seconds, self.trigger_seconds  # noqa: B018

    @property
    def memory_bytes(self) -> int | None:
        """`memory` in bytes; None where it is not set."""
        return None if self.memory is None else parse_size("memory", self.memory)

    @property
    def trigger_seconds(self) -> float | None:
        """`trigger` in seconds; None where it is not set."""
        if self.trigger is None:
            return None
        seconds = parse_duration(self.trigger) / 1e9
        if seconds <= 0:
            raise WrongTypeError(f"trigger={self.trigger!r}", cure='give a duration above 0, such as "1 min"')
        return seconds

    @property
    def recovery_seconds(self) -> float | None:
        """`recovery` in seconds; None where it is not set."""
        return Guarantee(self.recovery).recovery_seconds

    @property
    def deadline_seconds(self) -> float | None:
        """`deadline` in seconds; None where it is not set."""
        if self.deadline is None:
            return None
        seconds = parse_duration(self.deadline) / 1e9
        if seconds < SHORTEST_SECONDS:
            raise DeclarationError(
                f"a deadline of {seconds:g} s is too short to tell a task that hangs from one that waits for a core",
                cure=f"give at least {SHORTEST_SECONDS:g}s",
            )
        return seconds

    def tiers(self, fragment: str, identity: str) -> Tiers:
        """Where the state of a fragment lies. Stores may share a volatile directory and backup locations: `identity`
        keeps them apart."""
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


_SECONDS = ("latency", "poll", "max_seconds", "interval", "detection")
"""What may be given as any duration, and is held in seconds."""
_ONCE = ("availablenow", "available_now", "once")
_Kind = type[int] | type[float]
_WHOLE: tuple[_Kind, float] = (int, 1)
_NUMBER: tuple[_Kind, float] = (float, 0)
_NUMBERS: dict[str, tuple[_Kind, float]] = {
    "partitions": _WHOLE, "tasks": _WHOLE, "least_rows": _WHOLE, "most_rows": _WHOLE, "retain": _WHOLE,
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
        cure = f"use observer=: an hf.Observer with the method '{CALLBACKS[name]}' is told of it since 0.2"
    elif close:
        cure = f"did you mean '{close[0]}'?"
    else:
        cure = f"the options are: {', '.join(known)}; events are told to an `observer=`"
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
