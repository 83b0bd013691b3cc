"""Getting a pipeline going that its input has stopped: `hf.replan` and `hf.skip`, also as commands.

Both are asked for while nothing runs and carried out by the next start, which has the sources and the sinks at hand
(`engine/repair.py`). What is asked for here is checked here as far as the store can tell.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record_change import record_of
from holdfast.epoch.repair_messages import Replan, Skip
from holdfast.errors import AlreadyRunningError, UnknownStateError
from holdfast.meta import MetaStore, Repairs
from holdfast.store.location import local_path

if TYPE_CHECKING:
    from holdfast.connect.base import Position

__all__ = ["replan", "skip"]

NO_REASON = "no reason given"


def replan(pipeline: str, *, store: str | os.PathLike[str], meta: str | None = None, reason: str = NO_REASON) -> str:
    """Plan uncommitted epochs again at the next start, with the input at that time.

    `pipeline` is a pipeline, or one of its fragments. A file of lines that was read in part, and changed behind that
    part, is read on from there. Refused while the pipeline runs. Returns what will be done.
    """
    with _stopped(pipeline, store, meta) as (opened, fragments):
        due = {}
        for name in fragments:
            epochs = [plan.epoch for plan in opened.planned(name)]
            if epochs or any(position.get("file") for position in _positions(opened, name)):
                due[name] = epochs
        if not due:
            raise UnknownStateError(
                f"'{pipeline}' has no uncommitted plans",
                cure="start it; there is nothing to plan again",
            )
        for name, epochs in due.items():
            _ask(opened, name, Replan(tuple(epochs)), reason)
    return "; ".join(
        f"{_numbered(epochs)} of {name} will be planned again at the next start"
        if epochs
        else f"{name} will check again the file that it has started to read"
        for name, epochs in due.items()
    )


def skip(
    pipeline: str,
    what: int | str | os.PathLike[str],
    *,
    store: str | os.PathLike[str],
    meta: str | None = None,
    reason: str = NO_REASON,
) -> str:
    """Skip an uncommitted epoch, or the uncommitted rows of a file, at the next start.

    `what` is the number of an epoch, or a file: its path, or its name in the source's directory. Refused while the
    pipeline runs. Returns what will be done.
    """
    with _stopped(pipeline, store, meta) as (opened, fragments):
        if isinstance(what, int):
            fragment = _planning(opened, pipeline, fragments, what)
            _ask(opened, fragment, Skip(epoch=what), reason)
            return f"the input of epoch {what} of {fragment} will be skipped at the next start"
        file = os.path.abspath(what) if os.path.exists(what) else os.fspath(what)
        readers = [name for name in fragments if _reads_files(_positions(opened, name))]
        if not readers:
            raise UnknownStateError(
                f"no source of '{pipeline}' reads files",
                cure="skip an epoch by its number; `holdfast status` shows those that are planned",
            )
        for name in readers:
            _ask(opened, name, Skip(file=file), reason)
    return f"the rest of {file} will not be read by {', '.join(readers)} from the next start on"


@contextmanager
def _stopped(pipeline: str, store: str | os.PathLike[str], meta: str | None) -> Iterator[tuple[MetaStore, list[str]]]:
    """The store, and the fragments of a pipeline that is not running."""
    store = local_path(store, "store")
    if meta is None and not (store / "meta.db").exists():
        raise UnknownStateError(f"there is no store at {store}", cure="give the store of a run with --store")
    opened = MetaStore(meta or store)
    try:
        known = opened.pipelines()
        fragments = [name for name in known if name == pipeline or name.startswith(f"{pipeline}.")]
        if not fragments:
            raise UnknownStateError(
                f"there is no pipeline '{pipeline}' in the store", cure=f"it has: {', '.join(known) or 'none'}"
            )
        for name in fragments:
            now = time.time()
            runner = opened.runner_of(name, now)
            if runner is not None:
                raise AlreadyRunningError(
                    f"'{name}' is being run by {runner.owner} (host:process:start)",
                    cure="stop `holdfast run`, or the `holdfast up` of its hosts, with Ctrl-C or SIGTERM first; if its"
                    f" machine is gone, wait {max(1.0, runner.expires - now):.0f} s until its lease has expired",
                )
        yield opened, fragments
    finally:
        opened.close()


def _ask(meta: MetaStore, fragment: str, what: Replan | Skip, reason: str) -> None:
    Repairs(meta).ask(fragment, what.encode(), reason, time.time())


def _positions(meta: MetaStore, fragment: str) -> list[Position]:
    """Where the sources of a fragment stand, behind all that is planned; nothing before the first plan."""
    commits, planned = meta.history(fragment)
    if planned:
        return list(EpochPlan.decode(planned[-1].plan).positions.values())
    return list(record_of(commits[0]).positions.values()) if commits else []


def _reads_files(positions: Iterable[Position]) -> bool:
    """Also before the first plan: then it may."""
    found = list(positions)
    return not found or any("recent" in position for position in found)


def _planning(meta: MetaStore, pipeline: str, fragments: list[str], epoch: int) -> str:
    """The one fragment that has planned an epoch and not committed it."""
    planned = {name: [plan.epoch for plan in meta.planned(name)] for name in fragments}
    found = [name for name, epochs in planned.items() if epoch in epochs]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownStateError(
            f"epoch {epoch} is planned and not committed in {', '.join(found)}", cure="name the fragment"
        )
    open_ = ", ".join(f"{_numbered(epochs)} of {name}" for name, epochs in planned.items() if epochs)
    done = [name for name in fragments if meta.last_epoch(name) >= epoch]
    problem = f"epoch {epoch} of {done[0]} is committed" if done else f"there is no epoch {epoch} of '{pipeline}'"
    raise UnknownStateError(problem, cure=f"you can skip: {open_ or 'nothing; everything planned is committed'}")


def _numbered(epochs: list[int]) -> str:
    return f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
