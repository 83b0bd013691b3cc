"""An archive of Spark's Java classes, which Java maps into memory instead of reading, checking and laying out each.

Spark loads some ten thousand classes before its first task runs, and that is most of the time that a session takes to
start. `make_archive` runs a small pipeline and lets Java write what it has loaded (class data sharing, JEP 350) beside
the launcher that `epoch.java` keeps; `archive_options` is what makes later sessions use it. Java itself checks that
archive, runtime and jars belong together: one that does not fit is not used, and nothing else changes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyspark

from holdfast.epoch.java import JavaRuntime, ensure_java
from holdfast.errors import ClassArchiveError

if TYPE_CHECKING:
    from holdfast.graph.pipeline import Pipeline

__all__ = ["archive_options", "make_archive"]

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_EPOCHS = 5
_SECONDS_TO_WRITE = 300.0


def archive_options(home: Path) -> str:
    """What tells a Java that is started through `home` to use its archive; empty where there is none."""
    archive = _archive(home)
    if not archive.exists():
        return ""
    base = _base(home)
    return f"-XX:SharedArchiveFile={f'{base}:' if base.exists() else ''}{archive} {_QUIET}"


def make_archive() -> Path:
    """Run a small pipeline on a session of its own and keep the classes that it took; replaces an older archive.

    The process must not have a session. An error if Java cannot write an archive.
    """
    from holdfast.epoch.session import close_session, open_session
    from holdfast.run import run

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
        spark = open_session(app="holdfast prepare", java=f"{use}-XX:ArchiveClassesAtExit={draft} {_QUIET}")
        try:
            with tempfile.TemporaryDirectory(prefix="holdfast-prepare-") as store:
                run(_pipeline(Path(store)), spark=spark, store=store, durable=False)
        finally:
            close_session(spark, patience=_SECONDS_TO_WRITE)
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
        cure="sessions start without one, only slower; another Java runtime (JAVA_HOME) may be able to",
    )


def _pipeline(directory: Path) -> Pipeline:
    """Something of what most pipelines do: rows are taken, shuffled by key, kept as state and written."""
    import holdfast as hf

    seconds = [pl.DataFrame({"at": range(100 * n, 100 * n + 100)}) for n in range(_EPOCHS)]
    rows = [frame.with_columns(key=pl.col("at") % 7, value=pl.col("at")) for frame in seconds]
    pipeline = hf.Pipeline("prepare")
    taken = pipeline.source("rows", hf.memory(rows, epochs=True), event_time="at", time_unit="s")
    counts = taken.key_by("key").window(hf.tumbling("10s")).agg(rows=hf.count(), total=hf.sum("value"))
    counts.sink("out", hf.parquet(directory / "out"))
    return pipeline
