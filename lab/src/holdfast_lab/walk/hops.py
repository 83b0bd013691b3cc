"""The walk of a row: which functions an epoch goes through from source to commit, and how often the reader changes the
module and the package on the way.

    python -m holdfast_lab.walk                  # this checkout
    python -m holdfast_lab.walk --of DIR --list  # another one, with all the steps

A small pipeline (source, window, sink) runs on Spark, and every Python process of it writes down the calls
(`call_trace.py`). What counts is an epoch in the middle of the run, from one commit to the one after the next. A *hop*
is a call of a function from another module, counted once for each module that calls it; a *jump* is a hop to another
package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Hop", "hops_of", "main", "traced", "walk"]

_HERE = Path(__file__).parent
_CHECKOUT = _HERE.parents[3]
_FROM_EPOCH, _TO_EPOCH = 4, 6
_LOADER = """\
import importlib.util

spec = importlib.util.spec_from_file_location("call_trace", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.install()
"""


@dataclass(frozen=True, slots=True)
class Hop:
    caller: str
    module: str
    function: str

    @property
    def is_jump(self) -> bool:
        return _package(self.caller) != _package(self.module)


def _package(module: str) -> str:
    """The package of a module, below the one of all; a module that is in none is its own."""
    return module.split(".")[1] if "." in module else module


def walk(checkout: Path) -> list[Hop]:
    """The hops of an epoch, in their order."""
    with tempfile.TemporaryDirectory(prefix="hf-walk-") as directory:
        home = Path(directory)
        package = checkout.resolve() / "src" / "holdfast"
        calls = home / "calls.tsv"
        subprocess.run(
            [sys.executable, str(_HERE / "walk_pipeline.py"), str(home)], env=traced(package, home, calls), check=True
        )
        commits = dict(json.loads((home / "commits.json").read_text()))
        return hops_of(calls.read_text().splitlines(), commits[_FROM_EPOCH], commits[_TO_EPOCH])


def traced(package: Path, home: Path, calls: Path) -> dict[str, str]:
    """The environment of a process that writes down its calls within a package, and those of all it starts."""
    (home / "sitecustomize.py").write_text(_LOADER.format(path=str(_HERE / "call_trace.py")))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(home), str(package.parent))),
        "HOLDFAST_WALK_PACKAGE": str(package),
        "HOLDFAST_WALK_OUT": str(calls),
    }


def hops_of(lines: list[str], since: float, until: float) -> list[Hop]:
    """The hops of some time, each when it was first made."""
    found: dict[Hop, None] = {}
    for line in sorted(lines, key=lambda line: float(line.partition("\t")[0])):
        at, caller, module, function, _ = line.split("\t")
        if since < float(at) <= until and caller and caller != module:
            found[Hop(caller, module, function)] = None
    return list(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the hops between modules on a row's way.")
    parser.add_argument("--of", type=Path, default=_CHECKOUT, metavar="DIR", help="a checkout; by default this one")
    parser.add_argument("--list", action="store_true", help="list every hop")
    given = parser.parse_args()
    hops = walk(given.of)
    if given.list:
        for hop in hops:
            mark = "=>" if hop.is_jump else "->"
            print(
                f"{hop.caller.removeprefix('holdfast.')} {mark} {hop.module.removeprefix('holdfast.')}.{hop.function}"
            )
    modules = {hop.module for hop in hops} | {hop.caller for hop in hops}
    jumps = sum(hop.is_jump for hop in hops)
    print(f"{len(hops)} hops between {len(modules)} modules, {jumps} of them jumps between packages")


if __name__ == "__main__":
    main()
