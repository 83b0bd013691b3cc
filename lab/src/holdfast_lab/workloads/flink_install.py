"""Flink on this machine: where its jars are, and how they get there.

The package `apache-flink-libraries` is nothing but the jars of a Flink distribution. `ensure_flink` installs it,
without what it depends on, into a directory of its own in the user's cache, so that the old Python packages Flink asks
for never meet Holdfast's. Flink is then driven through py4j, which PySpark brings along; its Python API is not needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.errors import HoldfastError

__all__ = ["FLINK_VERSION", "ensure_flink", "find_flink", "flink_home"]

FLINK_VERSION = "2.3.0"

_PACKAGE = "apache-flink-libraries"
_SECONDS_TO_INSTALL = 900


def flink_home() -> Path:
    """Where Flink is or will be."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path("~/.cache").expanduser()) / "holdfast" / f"flink-{FLINK_VERSION}"


def find_flink() -> Path | None:
    """The directory of the jars, or None if Flink is not installed."""
    jars = flink_home() / "pyflink" / "lib"
    return jars if any(jars.glob("flink-dist-*.jar")) else None


def ensure_flink() -> Path:
    """The directory of the jars; installs Flink on the first call, a download of some hundred megabytes."""
    found = find_flink()
    if found is not None:
        return found
    home = flink_home()
    home.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    try:
        _install(draft)
        try:
            # In one step, so that another process never sees half of it.
            draft.rename(home)
        except OSError:
            if find_flink() is None:
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    found = find_flink()
    if found is None:
        raise HoldfastError(
            f"{_PACKAGE} {FLINK_VERSION} has no flink-dist jar below {home}", cure="remove that directory and try again"
        )
    return found


def _install(directory: Path) -> None:
    wanted = f"{_PACKAGE}=={FLINK_VERSION}"
    command = [*_installer(), "install", "--quiet", "--no-deps", "--target", str(directory), wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_TO_INSTALL)
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    else:
        if done.returncode == 0:
            return
        said = (done.stderr or done.stdout).strip()[-2_000:]
    raise HoldfastError(
        f"Flink could not be installed: {said}",
        cure=f"make a package registry reachable, or run `pip install --no-deps --target {flink_home()} {wanted}`",
    )


def _installer() -> list[str]:
    installed = Path(sys.executable).with_name("uv")
    uv = str(installed) if installed.is_file() else shutil.which("uv")
    return [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
