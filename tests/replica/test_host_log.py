"""The log of a host is cut while its process writes it, and takes so much room and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.replica.host_log import log_file, rotate

WRITER = """
import sys
for line in sys.stdin:
    sys.stdout.write(line)
    sys.stdout.flush()
    sys.stderr.write("!")
    sys.stderr.flush()
"""


def test_a_log_is_cut_under_the_process_that_writes_it(tmp_path: Path) -> None:
    log = log_file(tmp_path, "a")
    log.parent.mkdir()
    with log.open("ab") as opened:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=opened, stderr=subprocess.PIPE
        )
    assert process.stdin is not None
    assert process.stderr is not None
    for number in range(40):
        process.stdin.write(b"%04d %s\n" % (number, b"x" * 94))
        process.stdin.flush()
        assert process.stderr.read(1) == b"!", "the line is written"
        rotate(log, most=500)
    process.stdin.close()
    process.wait(30)
    process.stderr.close()
    files = [log.with_name(f"a.log.{age}") for age in (3, 2, 1)] + [log]
    kept = [int(line[:4]) for file in files for line in file.read_text().splitlines()]
    assert kept == list(range(40 - len(kept), 40)), "the newest lines, in their order"
    assert sorted(file.name for file in log.parent.iterdir()) == ["a.log", "a.log.1", "a.log.2", "a.log.3"]
    assert all(file.stat().st_size <= 600 for file in files)


def test_a_log_that_is_short_or_not_there_is_left_alone(tmp_path: Path) -> None:
    assert not rotate(tmp_path / "a.log")
    (tmp_path / "a.log").write_text("short")
    assert not rotate(tmp_path / "a.log")
    assert (tmp_path / "a.log").read_text() == "short"
