"""Which process a host is, as it has written in the store; whether it runs is decided in `meta/lease_holder.py`."""

from __future__ import annotations

from pathlib import Path

from holdfast.meta.lease_holder import is_dead, pid_here

__all__ = ["host_pid", "process_file", "running_hosts"]

_ENDING = ".process"


def process_file(store: Path, host: str) -> Path:
    """Where a host writes which process it is."""
    return store / "hosts" / f"{host}{_ENDING}"


def running_hosts(store: Path) -> dict[str, str]:
    """The processes of the hosts of a store by name, without those that are known to be dead."""
    written = {
        path.name.removesuffix(_ENDING): _owner_in(path) for path in sorted((store / "hosts").glob(f"*{_ENDING}"))
    }
    return {host: owner for host, owner in written.items() if owner and not is_dead(owner)}


def host_pid(store: Path, host: str) -> int | None:
    """The process id of a host that runs on this machine."""
    owner = _owner_in(process_file(store, host))
    return pid_here(owner) if owner else None


def _owner_in(path: Path) -> str:
    """Empty while the host is starting, and after it has ended."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
