"""Which hosts have sent no heartbeat for long: plans that count on them cannot be carried out until they are back.

This is not failure detection. A silent host loses its seat within `detection`, whoever replaces it; here the case is
detected that no host does. Silence is measured by the watcher's clock, and only while it is watching.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.replica.seats import Member

__all__ = ["LOST_SECONDS", "SilentHosts"]

LOST_SECONDS = 120.0
"""A supervisor has started a process again by then, and a session is open."""
_MOST_SECONDS = 5.0
"""Between two looks, no more than this counts: a process that was stopped for an hour has not watched for one."""


@dataclass(slots=True)
class SilentHosts:
    """How long each host has been silent."""

    silence: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, Member | None] = field(default_factory=dict)
    _at: float | None = None

    def look(self, hosts: Iterable[str], members: Mapping[str, Member], now: float, *, needed: bool) -> None:
        """While hosts are not `needed`, those that have ended are not missed."""
        passed = 0.0 if self._at is None or not needed else min(max(0.0, now - self._at), _MOST_SECONDS)
        self._at = now
        for host in {*hosts, *members}:
            member = members.get(host)
            new = host not in self._seen or self._seen[host] != member
            self.silence[host] = 0.0 if new else self.silence[host] + passed
            self._seen[host] = member

    def is_lost(self, host: str) -> bool:
        return self.silence.get(host, 0.0) >= LOST_SECONDS
