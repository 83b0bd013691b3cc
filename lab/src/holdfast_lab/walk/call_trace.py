"""Writes down which functions of Holdfast are called from where, in a process that is started with it.

It is loaded by path into every Python process of a traced run, before anything else and without the rest of the lab, so
that another checkout can be traced. Each line is a time, the module that calls, the module that is called and the
function; a call that is made again and again is written once in a while.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["install"]

_BUCKETS_PER_SECOND = 50
_NO_FUNCTIONS = ("<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")

Function = tuple[str, str]


class _Tracer:
    def __init__(self, package: str, out: str) -> None:
        self._root = str(Path(package).parent) + os.sep
        self._package = str(Path(package)) + os.sep
        self._file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._functions: dict[CodeType, Function | None] = {}
        self._bucket = 0
        self._seen: set[tuple[str, str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        called = self._function(frame.f_code)
        if called is None or called[1].rpartition(".")[2] in _NO_FUNCTIONS:
            return
        back, caller = frame.f_back, None
        while back is not None and (caller := self._function(back.f_code)) is None:
            back = back.f_back
        now = time.time()
        bucket = int(now * _BUCKETS_PER_SECOND)
        if bucket != self._bucket:
            self._bucket, self._seen = bucket, set()
        edge = ("" if caller is None else caller[0], *called)
        if edge not in self._seen:
            self._seen.add(edge)
            os.write(self._file, "\t".join((repr(now), *edge, "\n")).encode())

    def _function(self, code: CodeType) -> Function | None:
        """The module and the name of a function of the package."""
        if code not in self._functions:
            name = code.co_filename
            mine = name.startswith(self._package)
            module = name.removeprefix(self._root).removesuffix(".py").removesuffix("/__init__").replace(os.sep, ".")
            self._functions[code] = (module, code.co_qualname) if mine else None
        return self._functions[code]


def install() -> None:
    """As the environment says: the directory of a package, and the file to write to."""
    tracer = _Tracer(os.environ["HOLDFAST_WALK_PACKAGE"], os.environ["HOLDFAST_WALK_OUT"])
    threading.setprofile(tracer)
    sys.setprofile(tracer)
