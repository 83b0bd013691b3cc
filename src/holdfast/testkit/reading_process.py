"""Another process that reads slices of a source, as a task of a run would: started once, it serves all checks.

Sources and slices go to it pickled, rows come back. What a source keeps in memory of this process, or takes from its
hash seed, is not there.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import traceback
from typing import IO, Any

import polars as pl
from pyspark import cloudpickle

from holdfast.connect.base import Slice, Source

__all__ = ["read_elsewhere", "read_here"]

# As in tasks: Polars pickles expressions with Python functions in them by `import cloudpickle`.
sys.modules.setdefault("cloudpickle", cloudpickle)

_SIZE = 8
_process: subprocess.Popen[bytes] | None = None


def read_here(source: Source, piece: Slice) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """The rows of a slice, and those of them that did not fit."""
    frames, bad = [pl.DataFrame(schema=source.schema)], []
    for chunk in source.read(piece):
        frame = chunk.frame.select(source.schema.names())
        frames.append(frame)
        if chunk.bad is not None and chunk.bad.height:
            bad.append(chunk.bad)
    return pl.concat(frames), pl.concat(bad) if bad else None


def read_elsewhere(source: Source, pieces: list[Slice]) -> list[pl.DataFrame]:
    """The rows of slices as another process reads them. What it raises is an AssertionError here."""
    process = _started()
    assert process.stdin is not None
    assert process.stdout is not None
    asked: bytes = cloudpickle.dumps((source, pieces))  # type: ignore[no-untyped-call]
    _send(process.stdin, pickle.dumps((sys.path, asked)))
    answer = pickle.loads(_received(process.stdout))
    if isinstance(answer, str):
        raise AssertionError(f"another process cannot read the source:\n{answer}")
    frames: list[pl.DataFrame] = answer
    return frames


def _started() -> subprocess.Popen[bytes]:
    global _process
    if _process is None or _process.poll() is not None:
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "random"}
        _process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        atexit.register(_end, _process)
    return _process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _send(pipe: IO[bytes], body: bytes) -> None:
    pipe.write(len(body).to_bytes(_SIZE, "little") + body)
    pipe.flush()


def _received(pipe: IO[bytes]) -> bytes:
    size = pipe.read(_SIZE)
    if len(size) < _SIZE:
        raise EOFError
    return pipe.read(int.from_bytes(size, "little"))


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a source prints is no answer
    while True:
        try:
            body = _received(sys.stdin.buffer)
        except EOFError:
            return
        answer: Any
        try:
            path, asked = pickle.loads(body)
            sys.path[:] = path  # as where the source was made, which may import from more places by now
            source, pieces = cloudpickle.loads(asked)
            answer = [read_here(source, piece)[0] for piece in pieces]
        except BaseException:  # noqa: BLE001 - it is told where it was asked for
            answer = traceback.format_exc()
        _send(answers, pickle.dumps(answer))


if __name__ == "__main__":
    _serve()
