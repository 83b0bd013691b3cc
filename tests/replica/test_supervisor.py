"""Which processes a supervisor takes for its hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.meta.lease_holder import this_process
from holdfast.replica.process_file import process_file
from holdfast.replica.supervisor import HostProcess


@pytest.fixture
def living() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def found(store: Path, owner: str) -> HostProcess:
    """A host that has written who it is."""
    place = process_file(store, "a")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(owner)
    return HostProcess("a", store, [])


def test_a_host_that_lives_on_this_machine_is_found(tmp_path: Path) -> None:
    assert found(tmp_path, this_process()).pid() == os.getpid()
    assert found(tmp_path, "").pid() is None


def test_a_process_with_the_number_of_a_host_elsewhere_is_left_alone(
    tmp_path: Path, living: subprocess.Popen[bytes]
) -> None:
    started = psutil.Process(living.pid).create_time()
    host = found(tmp_path, f"another-machine:{living.pid}:{started:.2f}")
    assert host.pid() is None, "so it is started here"
    assert host.wait(0.0)
    host.terminate()
    host.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        living.wait(0.3)
