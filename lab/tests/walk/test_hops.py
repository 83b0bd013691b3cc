"""The walk through the code of a package: each call from one module to another, once, in every process."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

from holdfast_lab.walk.hops import Hop, hops_of, traced

LOOP = """\
from thing.parts import planner

def run():
    return [planner.plan(number) for number in range(3)]

def work():
    planner.own(1)
"""
PLANNER = """\
from thing.parts.input import take

def plan(number):
    return own(take(number))

def own(number):
    return number
"""
INPUT = """\
def take(number):
    return number
"""
PROGRAM = """\
import os, thing.loop

thing.loop.run()
if os.fork() == 0:
    thing.loop.work()
    os._exit(0)
os.wait()
"""


def test_hops_are_calls_between_modules_and_jumps_those_between_packages(tmp_path: Path) -> None:
    package = tmp_path / "src" / "thing"
    (package / "parts").mkdir(parents=True)
    for name, text in (("loop", LOOP), ("parts/planner", PLANNER), ("parts/input", INPUT)):
        (package / f"{name}.py").write_text(text)
    calls = tmp_path / "calls.tsv"
    subprocess.run([sys.executable, "-c", PROGRAM], env=traced(package, tmp_path, calls), check=True, timeout=60)
    hops = hops_of(calls.read_text().splitlines(), 0.0, math.inf)
    assert hops == [
        Hop("thing.loop", "thing.parts.planner", "plan"),
        Hop("thing.parts.planner", "thing.parts.input", "take"),
        Hop("thing.loop", "thing.parts.planner", "own"),
    ]
    assert [hop.is_jump for hop in hops] == [True, False, True]
    assert hops_of(calls.read_text().splitlines(), 0.0, 1.0) == []
