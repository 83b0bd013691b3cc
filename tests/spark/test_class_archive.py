"""The archive of Spark's Java classes: when it is used, and what happens where there can be none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from holdfast.errors import ClassArchiveError
from holdfast.spark import class_archive
from holdfast.spark.java import JavaRuntime


def test_java_is_told_nothing_where_there_is_no_archive(tmp_path: Path) -> None:
    assert class_archive.archive_options(tmp_path) == ""


def test_java_is_told_of_the_archive_and_of_what_it_lies_upon(tmp_path: Path) -> None:
    archive = class_archive._archive(tmp_path)
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive} " in class_archive.archive_options(tmp_path)
    base = class_archive._base(tmp_path)
    base.touch()
    assert f"-XX:SharedArchiveFile={base}:{archive} " in class_archive.archive_options(tmp_path)


def test_a_java_that_cannot_write_its_classes_is_named_and_nothing_stays_behind(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    java.chmod(0o755)
    launcher = tmp_path / "launcher"
    launcher.mkdir()
    with pytest.raises(ClassArchiveError, match=rf"(?s){home}.*no room.*cure: sessions start without"):
        class_archive._make_base(JavaRuntime(home, 21), launcher)
    assert not list(launcher.iterdir())


def test_a_runtime_with_an_archive_of_its_own_classes_needs_no_other(tmp_path: Path) -> None:
    (tmp_path / "lib" / "server").mkdir(parents=True)
    (tmp_path / "lib" / "server" / "classes.jsa").touch()
    assert class_archive._make_base(JavaRuntime(tmp_path, 17), tmp_path) is None


@pytest.mark.spark
def test_a_session_starts_from_the_archive(spark: SparkSession) -> None:
    archive = class_archive._archive(Path(os.environ["JAVA_HOME"]))
    if not archive.exists():
        pytest.skip("`holdfast prepare` was not run")
    java = SparkContext._gateway.proc.pid  # type: ignore[union-attr]
    assert str(archive) in Path(f"/proc/{java}/maps").read_text()
