"""The work directory: how the driver hands an epoch to its tasks.

Tasks read three small files: the program (once per process), the epoch's plan, and its hand-over, which the driver
writes when the epoch before is committed. A task of an assembly stage that comes early waits for the hand-over;
that is how epoch e + 1 reads while epoch e is assembled. All of it can be made again from the meta store, so
nothing here is synced.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import cloudpickle

from holdfast.epoch.handover import HandOver
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.errors import EpochFailedError, StoreFullError, UntrustedFileError
from holdfast.plan.program import Program
from holdfast.store import Private, Right, full_disk_named, remove_files, remove_tree
from holdfast.stored_json import JsonForm

__all__ = ["WorkDirectory", "decode_plan", "encode_plan", "load_program", "unsealed_program"]

# Polars pickles expressions with Python functions in them by `import cloudpickle`; PySpark has a copy of its own.
sys.modules.setdefault("cloudpickle", cloudpickle)

_PATIENCE_SECONDS = 600.0
_OWN = Private("the directory is named after this run")


@dataclass(frozen=True, slots=True)
class _PlanFile:
    plan: EpochPlan
    settings: TaskSettings


_PLAN_FILE = JsonForm(_PlanFile, "the plan of an epoch for its tasks")


def encode_plan(plan: EpochPlan, settings: TaskSettings) -> bytes:
    """A plan as it is given to tasks."""
    return _PLAN_FILE.encode(_PlanFile(plan, settings)).encode()


def decode_plan(data: bytes) -> tuple[EpochPlan, TaskSettings]:
    found = _PLAN_FILE.decode(data)
    return found.plan, found.settings


@dataclass(frozen=True, slots=True)
class WorkDirectory:
    """Files of the epochs in flight under one directory that every task can read."""

    root: Path
    run: str
    """Unique to this run of the driver, so that tasks left over from another one find nothing."""
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Tasks get it from Spark, with their job, and so know that the program they are about to run is the driver's."""

    def _epoch(self, epoch: int) -> Path:
        return self.root / self.run / f"{epoch:012d}"

    @property
    def program_path(self) -> Path:
        return self.root / self.run / "program.pickle"

    @property
    def scratch(self) -> Path:
        """A directory for what is of no use afterwards."""
        return self.root / self.run / "scratch"

    def write_program(self, program: Program) -> None:
        head = json.dumps({"path": sys.path}).encode() + b"\n"
        body = head + cloudpickle.dumps(program.for_tasks())  # type: ignore[no-untyped-call]
        _replace(self.program_path, hmac.digest(self.key, body, "sha256") + body)

    def sealed_program(self) -> bytes:
        """The program as it was written, to be sent to processes that cannot read it here."""
        return self.program_path.read_bytes()

    def write_plan(self, epoch: int, plan: EpochPlan, settings: TaskSettings | None = None) -> None:
        with _at(epoch):
            _replace(self._epoch(epoch) / "plan.json", encode_plan(plan, settings or TaskSettings()))

    def read_plan(self, epoch: int) -> tuple[EpochPlan, TaskSettings]:
        return decode_plan((self._epoch(epoch) / "plan.json").read_bytes())

    def write_handover(self, epoch: int, handover: HandOver) -> None:
        with _at(epoch):
            _replace(self._epoch(epoch) / "handover.json", handover.encode().encode())

    def wait_handover(self, epoch: int) -> HandOver:
        """The hand-over, waited for if the epoch before is not committed yet."""
        path = self._epoch(epoch) / "handover.json"
        deadline = time.monotonic() + _PATIENCE_SECONDS
        pause = 0.001
        while True:
            try:
                return HandOver.decode(path.read_bytes())
            except FileNotFoundError:
                if time.monotonic() > deadline or not path.parent.exists():
                    raise EpochFailedError(
                        "the previous epoch was not committed in time",
                        cure="check why the previous epoch did not end; the driver may have been stopped",
                        epoch=epoch,
                    ) from None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.01)

    def mark_fragment(self, epoch: int, task: int) -> None:
        """Tell the driver that a stage-0 task has read its input."""
        mark = self._epoch(epoch) / f"read-{task}"
        with _at(epoch), full_disk_named(mark):
            mark.touch()

    def fragments_done(self, epoch: int) -> int:
        try:
            return sum(1 for entry in os.scandir(self._epoch(epoch)) if entry.name.startswith("read-"))
        except FileNotFoundError:
            return 0

    def sign(self, epoch: int, stage: int, task: int) -> None:
        """A task is at work. A task that is no longer waited for finds nothing to sign."""
        with contextlib.suppress(OSError):
            (self._epoch(epoch) / f"sign-{stage}-{task}").touch()

    def done(self, epoch: int, stage: int, task: int) -> None:
        """A task has come to its end."""
        with contextlib.suppress(OSError):
            remove_files([self._epoch(epoch) / f"sign-{stage}-{task}"], _OWN)

    def signs(self, epoch: int) -> tuple[tuple[str, int], ...]:
        """What tasks have shown of themselves until now. Those that are at work have names that begin with `sign-`."""
        with contextlib.suppress(OSError):
            return tuple(sorted((sign.name, sign.stat().st_mtime_ns) for sign in os.scandir(self._epoch(epoch))))
        return ()

    def clear_signs(self, epoch: int) -> None:
        """Forget the tasks of an attempt that was given up."""
        signs = [self._epoch(epoch) / name for name, _ in self.signs(epoch) if name.startswith("sign-")]
        with contextlib.suppress(OSError):
            remove_files(signs, _OWN)

    def forget(self, epoch: int) -> None:
        directory = self._epoch(epoch)
        remove_tree(directory, _OWN)

    def remove_run(self) -> None:
        """Remove everything of this run."""
        remove_tree(self.root / self.run, _OWN)

    def remove_others(self, right: Right) -> None:
        """Remove what runs that were killed have left. The holder of the right knows that no other run is active: the
        directory of the next one is not among those that were found before."""
        found = [entry for entry in self.root.iterdir() if entry.name != self.run] if self.root.exists() else []
        for entry in found:
            remove_tree(entry, right)


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with full_disk_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(path)


@contextmanager
def _at(epoch: int) -> Iterator[None]:
    """Say which epoch could not be written."""
    try:
        yield
    except StoreFullError as error:
        raise error.at(epoch=epoch) from error.__cause__


_programs: dict[str, Program] = {}
_SEAL_BYTES = 32
_MOST_PROGRAMS = 8
"""Fragments that share a session are run by the same workers."""


def load_program(work: WorkDirectory) -> Program:
    """The program, unpickled once per process. A pickle is code: it is not read unless the driver of this run wrote
    it, whoever may write in the directory."""
    key = str(work.program_path)
    if key not in _programs:
        program = unsealed_program(work.sealed_program(), work.key, str(work.program_path))
        while len(_programs) >= _MOST_PROGRAMS:
            del _programs[next(iter(_programs))]
        _programs[key] = program
    return _programs[key]


def unsealed_program(data: bytes, key: bytes, name: str) -> Program:
    """The program that the driver with this key has written. `name` is what an error calls it."""
    if not hmac.compare_digest(data[:_SEAL_BYTES], hmac.digest(key, data[_SEAL_BYTES:], "sha256")):
        raise UntrustedFileError(
            f"{name} was not written by the driver of this run",
            cure="check which users may write to the store's directory, then start the pipeline again",
        )
    head, _, body = data[_SEAL_BYTES:].partition(b"\n")
    for entry in json.loads(head)["path"]:
        if entry not in sys.path:
            sys.path.append(entry)
    program = cloudpickle.loads(body)
    assert isinstance(program, Program)
    return program
