"""Ctrl-C in the first second, while Python still imports: one word, and no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WATCHED = """
import os, signal, sys

class Watching:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            {}

sys.meta_path.insert(0, Watching())
"""
"""Does something when the rest of the program comes to import what is named."""
INTERRUPTED = WATCHED.format("os.kill(os.getpid(), signal.SIGINT)")
TOLD = WATCHED.format("print('begun', flush=True)")

SCRIPT = "import holdfast as hf\nhf.Pipeline('p')\nhf.checkpoint\nhf.run\nprint('imported')\n"
COMMAND = "from holdfast.cli import main\nmain(['status'])\n"


def ended(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("module", ["holdfast.graph.pipeline", "polars", "pyarrow.lib", "holdfast.run"])
def test_an_interrupted_import_ends_the_program_with_a_word(module: str) -> None:
    done = ended(INTERRUPTED + SCRIPT, module)
    assert (done.stdout, done.stderr) == ("", "aborted\n")
    assert done.returncode == -signal.SIGINT, "130 for a shell"


@pytest.mark.parametrize("module", ["holdfast.cli.status", "holdfast.meta", "sqlalchemy"])
def test_a_command_that_is_interrupted_while_it_is_imported_ends_with_a_word(module: str) -> None:
    done = ended(INTERRUPTED + COMMAND, module)
    assert (done.stdout, done.stderr, done.returncode) == ("", "aborted\n", 130)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.2, 0.4])
def test_an_import_may_be_interrupted_at_any_moment(seconds: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TOLD + SCRIPT, "holdfast.checkpoint"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=120)
    assert "imported" in told or errors == "aborted\n"


def test_a_program_that_catches_the_interrupt_is_left_alone() -> None:
    caught = (
        "import holdfast as hf\ntry:\n    hf.Pipeline\nexcept KeyboardInterrupt:\n    print('caught')\n"
        "raise KeyboardInterrupt\n"
    )
    done = ended(INTERRUPTED + caught, "polars")
    assert done.stdout == "caught\n"
    assert "Traceback" in done.stderr, "an interrupt of its own is its own"


def test_after_the_import_the_program_is_as_it_was() -> None:
    done = ended(
        "import sys\nbefore = sys.excepthook\nimport holdfast as hf\nhf.run\nprint(sys.excepthook is before)\n"
    )
    assert done.stdout == "True\n"


def test_errors_of_the_import_are_shown(tmp_path: Path) -> None:
    (tmp_path / "polars.py").write_text("raise RuntimeError('broken')\n")
    done = ended(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport holdfast as hf\nhf.Pipeline\n")
    assert "Traceback" in done.stderr
    assert "RuntimeError: broken" in done.stderr
    assert done.returncode == 1
