"""An archive of Spark's Java classes, which Java maps into memory instead of reading, checking and laying out each.

Spark loads some ten thousand classes before its first task runs, and that is most of the time that a session takes to
start. `make_archive` exercises a session and lets Java write what it has loaded (class data sharing, JEP 350) beside
the launcher that `spark/java.py` keeps; `archive_options` is what makes later sessions use it. Java itself checks
that archive, runtime and jars belong together: one that does not fit is not used, and nothing else changes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from holdfast.errors import ClassArchiveError
from holdfast.spark.java import JavaRuntime, ensure_java

__all__ = ["archive_options", "make_archive"]

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_SECONDS_TO_WRITE = 300.0


def archive_options(home: Path) -> str:
    """What tells a Java that is started through `home` to use its archive; empty where there is none."""
    archive = _archive(home)
    if not archive.exists():
        return ""
    base = _base(home)
    return f"-XX:SharedArchiveFile={f'{base}:' if base.exists() else ''}{archive} {_QUIET}"


def make_archive(exercise: Callable[[SparkSession, Path], object]) -> Path:
    """Open a session, exercise it, and keep the classes that it took; replaces an older archive. `exercise` does what
    most pipelines do, and may use a directory meanwhile.

    The process must not have a session. An error if Java cannot write an archive.
    """
    from holdfast.spark.session import close_spark, open_spark  # noqa: PLC0415 - a session asks this module

    runtime = ensure_java()
    home = Path(os.environ["JAVA_HOME"])
    base = _make_base(runtime, home)
    handle, name = tempfile.mkstemp(dir=home, suffix=".jsa")
    os.close(handle)
    draft = Path(name)
    draft.unlink()  # Java refuses to write over a file
    archive = _archive(home)
    use = f"-XX:SharedArchiveFile={base} " if base else ""
    try:
        spark = open_spark(app="holdfast prepare", java=f"{use}-XX:ArchiveClassesAtExit={draft} {_QUIET}")
        try:
            with tempfile.TemporaryDirectory(prefix="holdfast-prepare-") as directory:
                exercise(spark, Path(directory))
        finally:
            close_spark(spark, patience=_SECONDS_TO_WRITE)
        if not draft.exists():
            raise _no_archive(runtime, "none was written")
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)
    return archive


def _archive(home: Path) -> Path:
    which = f"{pyspark.__version__} {pyspark.__file__}"
    return home / f"spark-{sha256(which.encode()).hexdigest()[:16]}.jsa"


def _base(home: Path) -> Path:
    return home / "base.jsa"


def _make_base(runtime: JavaRuntime, home: Path) -> Path | None:
    """The archive of Java's own classes that Spark's lies upon, where the runtime comes without one."""
    base = _base(home)
    if (runtime.home / "lib" / "server" / "classes.jsa").exists():
        base.unlink(missing_ok=True)
        return None
    if not base.exists():
        handle, name = tempfile.mkstemp(dir=home, suffix=".jsa")
        os.close(handle)
        draft = Path(name)
        try:
            command = [str(runtime.java), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}"]
            answer = subprocess.run(command, capture_output=True, text=True)
            if answer.returncode != 0:
                raise _no_archive(runtime, answer.stderr.strip()[-300:])
            draft.replace(base)
        finally:
            draft.unlink(missing_ok=True)
    return base


def _no_archive(runtime: JavaRuntime, why: str) -> ClassArchiveError:
    return ClassArchiveError(
        f"the Java of {runtime.home} cannot keep an archive of its classes: {why}",
        cure="sessions start without one, but more slowly; another Java runtime (JAVA_HOME) may be able to",
    )
