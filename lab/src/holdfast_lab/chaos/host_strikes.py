"""Making the faults that a plan asks for, and undoing those that do not last."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from holdfast_lab.chaos.fleet import Fleet
from holdfast_lab.chaos.host_faults import HostFault, step_of
from holdfast_lab.chaos.host_view import HostView
from holdfast_lab.chaos.victim_process import ask_to_scale

__all__ = ["MadeFault", "Network", "Server", "Striker"]

_MOST_PARTITIONS = 6
_SHARE_OF_THE_PRIMARY = 0.7


class Server(Protocol):
    """The server of the meta store."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


class Network(Protocol):
    """What is between a host and the server."""

    def cut(self, mode: Literal["drop", "hang"]) -> None: ...
    def heal(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MadeFault:
    """A fault that was made: in words, and how it ends. `after` seconds, `undo` says what came of it."""

    what: str
    after: float = 0.0
    undo: Callable[[], str] | None = None


@dataclass(slots=True)
class Striker:
    """`detection` is after how many seconds of silence hosts are taken for dead. `dead` are the processes that were
    killed, by host."""

    fleet: Fleet
    view: HostView
    detection: float
    server: Server | None = None
    networks: Mapping[str, Network] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)

    def strike(self, fault: HostFault) -> MadeFault | None:
        """None if it cannot be made now."""
        made: MadeFault | None = getattr(self, f"_{fault.kind}")(fault)
        return made

    def _primary(self, fault: HostFault) -> MadeFault | None:
        first = self.view.primary()
        return None if first is None else self._killed([first], fault.pick)

    def _secondary(self, fault: HostFault) -> MadeFault | None:
        """Where there is none, as in passive replication, the primary."""
        first, running = self.view.primary(), self.fleet.running()
        others = [name for name in running if name != first]
        return self._killed(others[:1] or running[:1], fault.pick)

    def _both(self, fault: HostFault) -> MadeFault | None:
        return self._killed(self.fleet.running(), fault.pick)

    def _killed(self, hosts: Sequence[str], pick: float) -> MadeFault | None:
        lose = pick < 0.5
        known, first = self.view.incarnations(), self.view.primary()
        killed = self.fleet.kill(hosts, lose=lose)
        if not killed:
            return None
        self.dead |= {name: known.get(name, 0) for name in killed}
        roles = ", ".join(f"{name} ({'the primary' if name == first else 'not the primary'})" for name in killed)
        return MadeFault(f"kill -9 of {roles}" + (", its memory lost" if lose else ""))

    def _java(self, fault: HostFault) -> MadeFault | None:
        """A host is nothing without its Java process, and its own process lives."""
        known, first, running = self.view.incarnations(), self.view.primary(), self.fleet.running()
        others = [name for name in running if name != first]
        host = others[0] if others and fault.pick > _SHARE_OF_THE_PRIMARY else first
        if host is None or not self.fleet.kill_one(host, "java", 0.0):
            return None
        self.dead |= {host: known.get(host, 0)}
        return MadeFault(f"kill -9 of Java of {host} ({'the primary' if host == first else 'not the primary'})")

    def _worker(self, fault: HostFault) -> MadeFault | None:
        first = self.view.primary()
        if first is None or not self.fleet.kill_one(first, "worker", fault.pick):
            return None
        return MadeFault(f"kill -9 of a Python worker of {first} (the primary)")

    def _supervisor(self, fault: HostFault) -> MadeFault:
        self.fleet.kill_supervisor()

        def again() -> str:
            self.fleet.start(self.view.scheme.name)
            return "started again"

        return MadeFault("kill -9 of the supervisor", 0.5 + 4.5 * fault.length, again)

    def _stop(self, fault: HostFault) -> MadeFault | None:
        first, token = self.view.primary(), self.view.token()
        if first is None or not self.fleet.signal(first, signal.SIGSTOP):
            return None
        seconds = self.detection * (0.5 + 2.0 * fault.length)

        def wake() -> str:
            after = self.view.token()
            self.fleet.signal(first, signal.SIGCONT)
            return f"{first} woke up and " + ("is still the primary" if after == token else "was replaced meanwhile")

        return MadeFault(f"stop of {first} (the primary) for {seconds:.1f} s", seconds, wake)

    def _database(self, fault: HostFault) -> MadeFault:
        assert self.server is not None
        server = self.server
        server.kill()

        def again() -> str:
            server.start()
            return "the database is there again"

        return MadeFault("kill of the database", 1.0 + 3.0 * fault.length, again)

    def _partition(self, fault: HostFault) -> MadeFault | None:
        first = self.view.primary()
        others = [name for name in self.networks if name != first]
        host = first if first is not None and fault.pick < _SHARE_OF_THE_PRIMARY else others[0]
        mode: Literal["drop", "hang"] = "hang" if int(fault.pick * 100) % 2 else "drop"
        network = self.networks[host]
        network.cut(mode)
        seconds = self.detection * (0.5 + 2.0 * fault.length)

        def heal() -> str:
            network.heal()
            return "healed"

        who = "the primary" if host == first else "not the primary"
        return MadeFault(f"{host} ({who}) is cut off from the database ({mode}) for {seconds:.1f} s", seconds, heal)

    def _disk(self, fault: HostFault) -> MadeFault | None:
        first, running = self.view.primary(), self.fleet.running()
        hosts = [first] if first is not None and fault.pick < 0.5 else running
        full = self.fleet.limit(hosts, full=True)
        if not full:
            return None

        def free() -> str:
            self.fleet.limit(running, full=False)
            return "there is space again"

        return MadeFault(f"the disk is full for {', '.join(full)}", 1.0 + 5.0 * fault.length, free)

    def _turn(self, fault: HostFault) -> MadeFault:
        steps = step_of(self.view.scheme, fault.pick)
        self.view.turn(steps)
        return MadeFault(f"turned to {' → '.join(scheme.name for scheme in steps)}")

    def _scale(self, fault: HostFault) -> MadeFault | None:
        asked = ask_to_scale(self.view.meta, fault.pick, 1 + int(fault.length * _MOST_PARTITIONS))
        return None if asked is None else MadeFault(f"scale {asked}")
