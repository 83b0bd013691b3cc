"""Bars of commands that take long: on a terminal they say how far it is, elsewhere nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.cli.group import current_task
from holdfast.cli.output import long_task

CODE = """
import click
from holdfast.cli.group import LongCommand, current_task

@click.command(cls=LongCommand)
def copy():
    for number in range(1, 4):
        current_task().at(number, "copying", 3)
        click.echo(f"file {number}")

copy()
"""


def test_a_terminal_shows_how_far_it_is_and_what_is_printed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while piece := os.read(ours, 65_536):
                shown.append(piece)
        except OSError:
            pass  # the other side is closed

    thread = threading.Thread(target=read)
    thread.start()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", CODE], stdout=theirs, stderr=theirs, env=environment, check=False)
    os.close(theirs)
    thread.join(20)
    os.close(ours)
    text = b"".join(shown).decode()
    assert done.returncode == 0, text
    assert "copying" in text
    assert all(f"file {number}" in text for number in (1, 2, 3))


def test_a_pipe_gets_what_is_printed_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "file 1\nfile 2\nfile 3\n", "")


def test_without_a_terminal_a_bar_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with long_task("waiting", 3) as task:
        task.at(1)
        task.step()
    assert capsys.readouterr() == ("", "")
    with pytest.raises(RuntimeError):
        current_task()  # only within a command
