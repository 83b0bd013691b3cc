"""Plots of the world of hosts: who is on the stage, and the blow that falls where it hurts most.

Faults that come at any time seldom meet two hosts at the same work. Each of these makes one such meeting likely, in a
fixed share of the seeds; what follows is up to the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.schemes.scheme import Scheme
from holdfast_lab.simulate.ambushes import BEFORE_COMMIT, BEFORE_PUBLISHING, IN_CLEANING_UP, WHEN_FOLLOWED
from holdfast_lab.simulate.scheduler import Process

if TYPE_CHECKING:
    from holdfast_lab.simulate.hosts import HostsWorld

__all__ = ["PLOTS"]

_BOTH_HAVE_BEGUN = 1.8
Plot = Callable[["HostsWorld"], None]


def _two(world: HostsWorld, scheme: Scheme, apart: float = 0.4) -> None:
    """Two hosts that process every epoch, and rows that come all the time, when both have begun."""
    world.slots = world.slots[:2]
    world.scheme, world.poll = scheme, 0.05
    world.sums.come_often(_BOTH_HAVE_BEGUN, apart)


def _outrun(world: HostsWorld) -> None:
    """The primary stalls before it commits, again and again: the secondary is first, or ahead."""
    _two(world, ACTIVE_REPLICATION)
    world.policy, world.retain = hf.checkpoint.interval("0.5s"), 1
    world.lay(BEFORE_COMMIT, "a host stalls", world.stall, whom=world.leads, chance=0.5, most=4)


def _publish_together(world: HostsWorld) -> None:
    """One is about to publish what the other cleans up after having published it, and readers have taken it away."""
    _two(world, ACTIVE_REPLICATION)
    world.has_reader = True
    world.sums.show_every_epoch()
    world.lay(BEFORE_PUBLISHING, "a host stalls", world.stall, chance=0.4, most=3)
    world.lay(IN_CLEANING_UP, "a host stalls", world.stall, chance=0.4, most=3)


def _wake_after_a_gap(world: HostsWorld) -> None:
    """The secondary sleeps while the primary is lost with its memory, and leaves out what the secondary has run."""
    _two(world, world.draw.choice((ACTIVE_REPLICATION, ACTIVE_STANDBY)), apart=0.6)
    world.sums.may_lack_rows()
    world.policy, world.retain = hf.checkpoint.interval("5s"), 3

    def act(process: Process) -> None:
        world.pause(process, world.draw.uniform(1.5, 3.0))
        at = world.scheduler.time + world.draw.uniform(0.0, 0.4)
        world.fault(at, "a host is switched off", world.switch_off_leader)
        world.sums.hold_back(3.0)  # both are back before windows end that lack rows

    world.lay(WHEN_FOLLOWED, "a host sleeps", act, whom=lambda process: not world.leads(process), chance=0.4)


def _lose_the_primary(world: HostsWorld) -> None:
    """The primary is gone for long when all of an epoch is done but the commit, and the other has run it, too."""
    _two(world, world.draw.choice((ACTIVE_STANDBY, ACTIVE_STANDBY, ACTIVE_REPLICATION)))

    def sleep(process: Process) -> None:
        world.pause(process, world.draw.uniform(2.0, 5.0))

    def switch_off(process: Process) -> None:
        world.switch_off(process.host, world.draw.uniform(0.0, 5.0))

    kind, act = world.draw.choice((("a host sleeps", sleep), ("a host is switched off", switch_off)))
    world.lay(BEFORE_COMMIT, kind, act, whom=world.leads, chance=0.3)


def _leave_out_what_is_delivered(world: HostsWorld) -> None:
    """The primary is gone with an epoch that a database has and the store does not, and may leave out epochs."""
    _two(world, world.draw.choice((HOT_STANDBY, COLD_STANDBY)))
    world.sums.may_lack_rows()

    def switch_off(process: Process) -> None:
        world.switch_off(process.host, world.draw.uniform(2.0, 5.0))

    world.lay(BEFORE_COMMIT, "a host is switched off", switch_off, whom=world.leads, chance=0.3)


PLOTS: tuple[Plot | None, ...] = (
    None, _outrun, None, _publish_together, None, _wake_after_a_gap, _leave_out_what_is_delivered, _lose_the_primary,
)  # fmt: skip
"""Seeds of the world take turns. Without a plot, faults are drawn of all that there are."""
