"""What hosts are told to run: a pipeline by its file, how it is run, and what it must keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from holdfast.epoch.checkpoints import asked_policy
from holdfast.epoch.options import RunOptions
from holdfast.errors import DeclarationError
from holdfast.graph.guarantee import Delivery, Guarantee
from holdfast.graph.policies import as_policy
from holdfast.plan.fragments import FragmentLinks
from holdfast.plan.program import Program
from holdfast.replica.caution import Caution
from holdfast.replica.schemes import Scheme
from holdfast.state.policy import Policy

__all__ = ["Deployment", "check_replicable"]

_SETTINGS = (
    "partitions", "tasks", "latency", "least_rows", "most_rows", "retain", "overlap", "durable", "until_idle",
    "max_epochs", "max_seconds", "poll", "recovery_partitions", "memory", "deadline", "trigger",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`target` is `FILE:NAME` as for `holdfast run`, with an absolute path. `scheme` is kept as it is; where it is
    None, the controller keeps the cheapest that keeps the guarantee."""

    pipeline: str
    target: str
    fragments: Mapping[str, FragmentLinks]
    settings: Mapping[str, Any]
    checkpoint: str = "delta"
    scheme: Scheme | None = None
    recovery: float | None = None
    precise: bool = True
    budget: float | None = None
    hosts: tuple[str, ...] = ()
    """Those that a supervisor starts when they are needed; others may join."""
    calm: float = Caution().calm
    """For how many seconds a slower scheme must have been safe before it is taken."""
    activation: Mapping[str, Any] | None = None
    """The JSON of the `ActivationPlan`, where completeness is guaranteed and enough is known to keep it by one."""
    since: float = 0.0
    """When it was given to the hosts."""

    @property
    def guarantee(self) -> Guarantee:
        delivery = Delivery.EXACTLY_ONCE if self.precise else Delivery.GAP
        recovery = None if self.recovery is None else f"{round(self.recovery * 1e6)}us"
        return Guarantee(recovery, delivery, self.budget)

    @property
    def caution(self) -> Caution:
        return Caution(calm=self.calm)

    def runs_like(self, other: Deployment) -> bool:
        """Whether hosts that run the one run the other, too: which replicas are active may be another."""
        return replace(self, activation=other.activation, since=other.since) == other

    @staticmethod
    def of(options: RunOptions, **given: Any) -> Deployment:
        return Deployment(settings={name: getattr(options, name) for name in _SETTINGS}, **given)

    @property
    def first_scheme(self) -> Scheme:
        """The scheme to begin with: a controller has nothing measured yet, and begins in the middle."""
        return self.scheme or Scheme.PASSIVE_STANDBY_COLD

    def options(self, fragment: str, store: Path, meta: str | None, host: str, volatile: Path | None) -> RunOptions:
        """How a host runs a fragment."""
        settings = dict(self.settings)
        if self.fragments[fragment].inner:
            settings |= {"max_epochs": None, "max_seconds": None, "until_idle": True, "trigger": None}
        return RunOptions(
            store=store, meta=meta, host=host, volatile=volatile, checkpoint=as_policy(self.checkpoint), **settings
        )

    def to_json(self) -> dict[str, Any]:
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "fragments": {name: asdict(each) for name, each in self.fragments.items()},
            "settings": dict(self.settings),
            "scheme": None if self.scheme is None else self.scheme.value,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Deployment:
        links = {
            name: FragmentLinks(tuple(each["upstream"]), each["inner"]) for name, each in value["fragments"].items()
        }
        scheme = None if value["scheme"] is None else Scheme(value["scheme"])
        return Deployment(**{**value, "fragments": links, "scheme": scheme, "hosts": tuple(value["hosts"])})


def check_replicable(program: Program, policy: Policy | None) -> None:
    """Refuse what cannot be run by several hosts, before anything starts."""
    if program.spark_input is not None:
        raise DeclarationError(
            f"'{program.name}' reads a Spark streaming DataFrame, which belongs to the session of one process",
            cure="run it with `holdfast run`, or read the data with a source of Holdfast",
        )
    asked = asked_policy(program, policy)
    if asked is not None and asked.kind == "eventual":
        raise DeclarationError(
            f"the checkpoint policy '{asked}' of '{program.name}' leaves footprints in the order of one process",
            cure="use delta, interval(5s) or none with several hosts",
        )
