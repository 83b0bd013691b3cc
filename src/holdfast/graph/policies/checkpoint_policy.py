"""What a checkpoint policy is: all that the rest of Holdfast asks of one.

A policy decides when the state of a fragment becomes durable and, by that, where the fragment begins again when its
volatile tier is lost. Each policy is a module of its own beside this one. It is a frozen value that can be written as
text and read back, since records of epochs name their policy. Everything here is pure: the facts are handed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

from holdfast.errors import DeclarationError
from holdfast.state.goals import FootprintRules
from holdfast.store import Tier

__all__ = ["CheckpointPolicy", "FragmentFacts", "PolicyFigures", "PricedPolicy", "ReplayStart", "ReplayStarts"]

_LEAST_BUSY = 0.05


class FragmentFacts(Protocol):
    """What a policy may ask about the fragment that it is to be used for."""

    @property
    def name(self) -> str: ...

    @property
    def reads_again(self) -> bool:
        """Whether its input can be read a second time."""
        ...

    @property
    def shared(self) -> bool:
        """Whether all tasks see the same volatile tier."""
        ...

    def footprint_streams(self) -> Mapping[str, str]:
        """For each stateful operator the p-stream that its footprints go to. Raises a `DeclarationError` that names an
        operator which cannot be recovered from footprints."""
        ...


ReplayStart = Literal["copy", "empty", "footprints"]
"""With which state a replay begins: one that was copied to the stable tier, none, or what the last footprints say."""


@dataclass(frozen=True, slots=True)
class ReplayStarts:
    """After which epoch a replay could begin, by the state that it would begin with.

    `copy` is the last epoch that was copied or, where that is newer, the one that was settled on before. The others are
    None where there is no such epoch, or none that is as new.
    """

    copy: int
    empty: int | None = None
    footprints: int | None = None


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """What a running fragment showed, per second.

    `written` is the bytes of state p-units of all epochs, `fresh` those of the p-units that were still part of the
    state at the end of an interval of `seconds` and had not been at its beginning, `read` the bytes of input that were
    processed. `history` is how many seconds of input would have to be processed again to begin with empty state; None
    where it is everything since the first epoch. `busy` is the share of the time that epochs took: input of a second is
    replayed in so many. `footprints` is the bytes that windows left where they leave footprints, and `gathering` the
    seconds that a recovery from them was expected to take; None where that was not tried.
    """

    seconds: float
    written: float
    fresh: float
    read: float
    history: float | None
    busy: float = 1.0
    footprints: float | None = None
    gathering: float = 0.0

    def replayed_in(self, seconds: float) -> float:
        """How many seconds of input are replayed in so many seconds."""
        return seconds / max(self.busy, _LEAST_BUSY)


@dataclass(frozen=True, slots=True)
class PricedPolicy:
    """A policy, what it costs in bytes per second, and how many seconds a recovery takes at most."""

    policy: CheckpointPolicy
    cost: float
    recovery: float


class CheckpointPolicy(ABC):
    """Derived classes are frozen dataclasses; their fields are what a user can set."""

    __slots__ = ()

    name: ClassVar[str]
    """What it is called in text, in front of the parentheses."""
    usage: ClassVar[str]
    """How it is written as text, for whoever has written something else."""
    tier: ClassVar[Tier] = "volatile"
    """Where tasks write state. What lies on the volatile tier outlives the process, but not the host."""

    # as text

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parsed(cls, arguments: str | None) -> Self:
        """The policy from what stands in the parentheses behind its name, None where there are none. Text that is not
        understood is a ValueError, one that makes no sense a `DeclarationError`."""
        if arguments is not None:
            raise ValueError(arguments)
        return cls()

    @abstractmethod
    def explain(self, fragment: FragmentFacts) -> list[str]:
        """What it does, in lines that follow each other."""

    # where it can be used

    def check(self, fragment: FragmentFacts) -> None:
        """Refuse a fragment that could not be recovered under this policy."""
        if self.tier == "stable":
            return
        if not fragment.reads_again:
            raise DeclarationError(
                f"checkpoint policy '{self}' needs sources that can be read again; Structured Streaming decides"
                " what a batch is and gives it once",
                cure="use the policy 'delta' with from_spark, or a p-stream between them: from_spark(..., stream=...)",
            )
        if not fragment.shared:
            raise DeclarationError(
                f"checkpoint policy '{self}' keeps state in the memory of the machine that runs a task, where the"
                " others cannot read it",
                cure="name a volatile directory that all machines share (`volatile=`), or use the policy 'delta'",
            )

    def check_on_hosts(self, fragment: str) -> None:  # noqa: B027 - most policies refuse none
        """Refuse a fragment that several hosts are to run."""

    @property
    def strictness(self) -> tuple[float, ...]:
        """Of two policies of this class, the one with the smaller figures asks for more."""
        return ()

    # what is done while a fragment runs

    def copy_due(self, seconds: float, epochs: int) -> bool:
        """Whether state that is not durable is copied to the stable tier now: so many seconds after the last copy was
        begun, with so many epochs since that a recovery would replay."""
        return False

    @property
    def copy_seconds(self) -> float:
        """The seconds from one copy to the next, where they are fixed."""
        return 0.0

    @property
    def footprints(self) -> FootprintRules | None:
        """When windows leave footprints; None: never."""
        return None

    def replay_start(self, starts: ReplayStarts) -> ReplayStart:
        """Where a replay begins from now on, if the volatile tier is lost. What lies before it is let go, for good."""
        return "copy"

    # the choice of the policy that costs least

    @classmethod
    def priced(cls, figures: PolicyFigures, failures: float, recovery: float | None) -> PricedPolicy | None:
        """This policy with what suits the figures best, and what it costs if a host fails so many times per second.
        With `recovery`, the seconds that a recovery may take are that many. None: it is not to be chosen."""
        return None

    @classmethod
    def trial(cls, fragment: FragmentFacts, recovery: float) -> Self | None:
        """What to try for one interval, because the figures that price this policy are not known before; None where
        they are, or where the fragment cannot have it. A recovery is to take so many seconds at most."""
        return None
