"""`holdfast chaos --hosts`: kill -9, stopped processes, a full disk, the database and the network, for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,  # test_host_faults.py has its parts
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

FAULTS = 12


def test_hosts_under_faults_of_many_kinds_give_what_they_give_without(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "chaos", "cm1", "--hosts", "2", "--faults", str(FAULTS), "--seed", "7",
               "--meta", "postgresql", "--scheme", "mixed", "--json"]  # fmt: skip
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    assert (said["faults"], said["lost"], said["duplicated"], said["equal"]) == (FAULTS, 0, 0, True)
