"""What a standby keeps up to date while another host runs the fragment: the state, and with `hot` also the input.

The state is the one that a takeover would start from: that of the last commit, or that of the last checkpoint if the
state of the last commit is in the primary's memory. Its p-units are copied to this host and verified as they arrive.
With `hot`, the input that would have to be replayed is read as soon as it is planned. So neither has to be done during
a takeover.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record_change import record_of
from holdfast.errors import HoldfastError
from holdfast.meta import Commit, MetaStore
from holdfast.plan.program import Program
from holdfast.pstream.punit import PUnit, copy_punit
from holdfast.store import Private, Tiers
from holdfast.task.inbox import Inbox
from holdfast.threads import SYSTEM, Clock

__all__ = ["Standby", "inbox_of"]

_LOOK_AGAIN_SECONDS = 1.0
_COPIES = Private("copies for the takeovers of this host alone")


@dataclass(slots=True)
class Standby:
    """`sound` are the p-units that are here and whole; `received` counts the bytes that came."""

    program: Program
    meta: MetaStore
    tiers: Tiers
    inbox: Inbox
    clock: Clock = SYSTEM
    sound: set[str] = field(default_factory=set)
    received: int = 0
    epoch: int | None = None
    """The last commit that was looked at."""
    _looked_at: float = 0.0

    def follow(self, *, hot: bool) -> bool:
        """Look whether there is anything new, and fetch it. Whether all is here that is wanted."""
        epoch = self.meta.last_epoch(self.program.name)
        now = self.clock.monotonic()
        if epoch != self.epoch or now - self._looked_at > _LOOK_AGAIN_SECONDS:  # a checkpoint may come without an epoch
            self._looked_at = now
            if not self._fetch(epoch):
                return False
            self.epoch = epoch
        if hot:
            self._receive()
        else:
            self.inbox.forget()
        return True

    def _fetch(self, epoch: int) -> bool:
        found = self.meta.look_up(self.program.name, epoch) if epoch else None
        if not isinstance(found, Commit):
            return epoch == 0
        record = record_of(found)
        base = record.base
        if base is not None:
            found = self.meta.look_up(self.program.name, base.epoch)
            if base.empty or base.eventual or not isinstance(found, Commit):
                return True  # nothing to fetch: a takeover begins without state, or gathers it
            record = record_of(found)
        units = {unit.name: unit for unit in record.units()}
        for name, unit in units.items():
            if name not in self.sound and not self._copy(unit):
                return False
        local = self.tiers.at("volatile").alone
        local.remove(self.sound - units.keys(), _COPIES)
        self.sound &= units.keys()
        return True

    def _copy(self, unit: PUnit) -> bool:
        """Bring a p-unit here; False if it is gone already, because there is a newer state."""
        local = self.tiers.at("volatile").alone
        try:
            copy_punit(self.tiers.stable_only, unit, local)
        except (OSError, HoldfastError):
            local.remove([unit.name], _COPIES)
            return False
        self.sound.add(unit.name)
        self.received += unit.bytes
        return True

    def _receive(self) -> None:
        """Read what was planned behind the state that is here."""
        commits, planned = self.meta.history(self.program.name)
        begin = commits[0].epoch if commits else 0
        if commits and (base := record_of(commits[0]).base) is not None:
            begin = base.epoch
        texts = {commit.epoch: commit.plan for commit in commits} | {plan.epoch: plan.plan for plan in planned}
        texts = {epoch: text for epoch, text in texts.items() if epoch > begin}
        for epoch, text in sorted(texts.items()):
            self.received += self.inbox.fill(self.program, epoch, EpochPlan.decode(text))
        self.inbox.forget(begin + 1)

    def drop(self) -> None:
        """Let go of everything."""
        self.inbox.forget()
        self.tiers.at("volatile").alone.remove(self.sound, _COPIES)
        self.sound = set()


def inbox_of(tiers: Tiers) -> Inbox:
    """Where a host keeps the input of a fragment that it stands by for."""
    return Inbox(Path(f"{tiers.volatile}.input"))
