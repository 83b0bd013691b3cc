"""Mosquitto, an MQTT broker of one's own on this machine only, to be stopped, killed and started again.

The program is the one on the PATH, else that of the distribution's package, which is fetched with apt and unpacked into
the user's cache, not installed. Where there is neither, tests that need it are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from holdfast_lab.experiment.scabbard import jars

_PLACES = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin"
_PATIENCE = 20.0


@cache
def mosquitto() -> tuple[str, Mapping[str, str]] | None:
    """The program and the environment that it needs; None where there is none."""
    found = shutil.which("mosquitto", path=_PLACES)
    if found is not None:
        return found, os.environ
    place = jars.cache() / "mosquitto"
    if not place.is_dir() and not _fetched(place):
        return None
    libraries = ":".join(str(path) for path in place.glob("**/lib/*-linux-gnu"))
    return str(place / "usr/sbin/mosquitto"), {**os.environ, "LD_LIBRARY_PATH": libraries}


def _fetched(place: Path) -> bool:
    work = place.with_name(f"mosquitto-{os.getpid()}")
    work.mkdir(parents=True, exist_ok=True)
    try:
        told = _run(["apt-cache", "depends", "mosquitto"], work)
        needed = [line.split()[-1] for line in told.splitlines() if "Depends: lib" in line]
        missing = [name for name in needed if "ok installed" not in _run(["dpkg", "-s", name], work, check=False)]
        _run(["apt-get", "download", "mosquitto", *missing], work)
        for package in work.glob("*.deb"):
            _run(["dpkg", "-x", str(package), "root"], work)
        (work / "root").rename(place)
    except (OSError, subprocess.SubprocessError):
        return place.is_dir()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return True


def _run(command: list[str], work: Path, *, check: bool = True) -> str:
    return subprocess.run(command, cwd=work, check=check, capture_output=True, text=True, timeout=120).stdout


class MqttBroker:
    """A broker that writes what it must keep to disk once a second; it ends with `kill` or `stop`."""

    def __init__(self, home: Path, *settings: str) -> None:
        program = mosquitto()
        assert program is not None
        self._program, self._environment = program
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self._config = home / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true",
            f"persistence_location {home}/", "autosave_interval 1", "autosave_on_changes true", "user root",
            "max_queued_messages 0", *settings,
        ]  # fmt: skip
        self._config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "-c", str(self._config)],
            env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert self._process.poll() is None, "the broker does not start"
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
