"""The plan of an epoch: what each task reads, and where keys go. It is stored before the epoch runs, and an epoch that
runs again runs by the same plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.connect.base import Position, Slice
from holdfast.epoch.lookup_version import LookupVersion
from holdfast.formats import EPOCH_VERSION
from holdfast.plan.evolution import under
from holdfast.state.routing import Routing
from holdfast.stored_json import JsonForm, Natural
from holdfast.versioned_message import EpochVersion

__all__ = ["EpochPlan", "Slices", "TaskSettings"]

Slices = Mapping[str, tuple[tuple[Slice, ...], ...]]
"""The slices of each source, by task."""


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """`positions` and `done` are where the sources stand after the epoch. Where a source is `open`, rows follow that
    have no order among them and those of this epoch."""

    slices: Slices
    positions: Mapping[str, Position]
    done: Mapping[str, bool]
    tasks: tuple[Natural, ...]
    """How many tasks each stage has."""
    routing: Mapping[str, Routing]
    open: Mapping[str, bool] = field(default_factory=dict)
    now: float | None = None
    """The clock when the epoch was planned, which never goes back from plan to plan: how far rows are ahead of it, and
    what is kept by the clock, is decided by this reading, also when the epoch runs again."""
    idle: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The sources that were silent for long, each with those that its watermark follows."""
    tables: Mapping[str, LookupVersion] = field(default_factory=dict)
    """The versions of lookup tables that rows are joined with, by operator."""
    generation: Natural = 0
    """How many repairs were carried out before it was planned."""
    passed: bool = False
    """Whether a person has its input passed over."""
    version: EpochVersion = EPOCH_VERSION

    def encode(self) -> str:
        return _FORM.encode(self)

    @staticmethod
    def decode(text: str | bytes) -> EpochPlan:
        return _FORM.decode(text)

    def renamed(self, sources: Mapping[str, str], operators: Mapping[str, str]) -> EpochPlan:
        """The plan where sources and operators have new names."""
        return replace(
            self,
            slices=under(sources, self.slices),
            positions=under(sources, self.positions),
            done=under(sources, self.done),
            open=under(sources, self.open),
            idle={name: under(sources, others) for name, others in under(sources, self.idle).items()},
            routing=under(operators, self.routing),
            tables=under(operators, self.tables),
        )

    def slices_of(self, source: str) -> list[Slice]:
        return [piece for pieces in self.slices.get(source, ()) for piece in pieces]

    def rows_of(self, source: str) -> int:
        """About how many rows the epoch reads of a source."""
        return sum(piece.rows for piece in self.slices_of(source))


_FORM = JsonForm(EpochPlan, "the plan of an epoch", EPOCH_VERSION)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How tasks are to run an epoch, apart from its plan. It is not stored: another attempt may run in another way."""

    silent: bool = False
    """Run it for its state only, and put nothing out."""
    digest: bool = False
    """Report checksums of the output, by which replicas are compared."""
    inbox: str | None = None
    """The directory with input that this host has received already."""
