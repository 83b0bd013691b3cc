"""A virtual environment with a wheel, what it requires, and nothing else.

What is required is linked from the environment that runs this, after the wheel's own metadata: without a registry, in
seconds, and in the versions of the lock. `python tests/clean_environment.py DIRECTORY WHEEL`
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["clean_environment", "required"]


def clean_environment(place: Path, wheel: Path) -> Path:
    """The Python of the new environment."""
    _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(place))
    python = place / "bin/python"
    [site] = place.glob("lib/python*/site-packages")
    for found in required(wheel):
        _link(found, site)
    _uv("pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(python), str(wheel))
    _uv("pip", "check", "--quiet", "--python", str(python))
    return python


def required(wheel: Path) -> Iterator[Distribution]:
    """All that a wheel requires without extras, also by way of others."""
    with zipfile.ZipFile(wheel) as opened:
        [metadata] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        lines = Parser().parsestr(opened.read(metadata).decode()).get_all("Requires-Dist", [])
    waiting, seen = [(Requirement(line), "") for line in lines], set()
    while waiting:
        wanted, extra = waiting.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        found = distribution(name)
        if name not in seen:
            seen.add(name)
            yield found
        for each in ("", *wanted.extras):
            if (name, each) not in seen:
                seen.add((name, each))
                waiting += [(Requirement(line), each) for line in found.requires or ()]


def _link(found: Distribution, site: Path) -> None:
    """Its files with their bytecode; not its programs, whose first line names the Python of the other environment."""
    for file in found.files or ():
        source = Path(str(found.locate_file(file)))
        if ".." in file.parts or not source.is_file():
            continue
        cached = source.parent / "__pycache__"
        compiled = (
            cached.glob(f"{source.stem}.*.pyc") if source.suffix == ".py" and "__pycache__" not in file.parts else ()
        )
        for each in (source, *compiled):
            target = site / Path(*file.parts).parent / each.relative_to(source.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                _same(each, target)


def _same(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _uv(*arguments: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("uv")), *arguments], check=True)


if __name__ == "__main__":
    print(clean_environment(Path(sys.argv[1]), Path(sys.argv[2])))
