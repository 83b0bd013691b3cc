"""How a pipeline is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.connect.push import parse_size
from holdfast.epoch.deadline import SHORTEST_SECONDS
from holdfast.epoch.waiting import DETECTION
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.durations import Duration, parse_duration
from holdfast.graph.guarantee import Guarantee
from holdfast.state.policy import Policy
from holdfast.store import Tiers, default_volatile, make_private, private_directory
from holdfast.store.location import local_path

__all__ = ["RunOptions"]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a pipeline is run. `partitions` is the default of stateful operators; `tasks` how many tasks read."""

    store: Path = Path(".holdfast")
    partitions: int = 2
    tasks: int = 2
    latency: float = 1.0
    least_rows: int = 20_000
    most_rows: int = 1_000_000_000
    retain: int = 16
    overlap: bool = True
    durable: bool = True
    until_idle: bool = False
    """Stop when the sources have nothing new, instead of waiting for more."""
    max_epochs: int | None = None
    """Stop after the epoch of this number, counted from the pipeline's first start."""
    max_seconds: float | None = None
    poll: float = 0.05
    trigger: Duration | None = None
    """Begin an epoch at most so often, as in "1 min", and take all that has come. "available now" takes what is there,
    in epochs of the usual size, and stops."""
    detection: float = DETECTION
    """The seconds after which an executor of a cluster that is silent is given up, where the session is opened for the
    run."""
    meta: str | None = None
    """The postgresql:// URL of the meta store; by default it is SQLite in the store."""
    checkpoint: Policy | None = None
    """When state is made durable; by default as costs least."""
    interval: float = 5.0
    """The seconds between checkpoints where the policy is chosen by cost."""
    volatile: Path | None = None
    """The volatile tier, which the loss of the host may take; by default in memory."""
    backups: tuple[Path, ...] = ()
    """Other stable locations that keep copies of the state."""
    memory: int | str | None = None
    """The budget of the volatile tier, in bytes or as in "2 GB": what is beyond it spills to disk."""
    failures_per_hour: float = 1.0
    """How often hosts are expected to fail, to weigh the cost of recovery against that of checkpoints."""
    recovery: Duration | None = None
    """How long it may take to have lost state back, as in "2s"; by default as the pipeline's guarantee says."""
    deadline: Duration | None = None
    """How long an epoch, a source or a sink may show no progress, as in "1 min"; by default as long as follows from
    what it has taken before: see `epoch.deadline`."""
    host: str | None = None
    """The name of the host that runs it, where several share the store."""
    recovery_partitions: int | None = None
    """Replay lost state with so many partitions per operator, and go on with them."""

    def __post_init__(self) -> None:
        for name in ("store", "volatile"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, local_path(value, name))
        object.__setattr__(self, "backups", tuple(local_path(place, "backups") for place in self.backups))
        if self.trigger == "available now":
            object.__setattr__(self, "trigger", None)
            object.__setattr__(self, "until_idle", True)
        # What makes no sense is an error here, not in the middle of a run.
        self.memory_bytes, self.recovery_seconds, self.deadline_seconds, self.trigger_seconds  # noqa: B018

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_size("memory", self.memory)

    @property
    def trigger_seconds(self) -> float | None:
        if self.trigger is None:
            return None
        seconds = parse_duration(self.trigger) / 1e9
        if seconds <= 0:
            raise WrongTypeError(f"trigger={self.trigger!r}", cure='give a duration above 0, such as "1 min"')
        return seconds

    @property
    def recovery_seconds(self) -> float | None:
        return Guarantee(self.recovery).recovery_seconds

    @property
    def deadline_seconds(self) -> float | None:
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
