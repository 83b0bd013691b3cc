"""A Flink of one Java process, with a table environment to run SQL in and its REST interface to look inside.

The process is started and ended here; py4j speaks to it. Every job gets a cluster of its own inside the process and is
asked for its figures while it runs. To measure, a Java process is used for one query only: what its compiler learnt
from another one would slow it down.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from holdfast.errors import EpochFailedError
from holdfast.spark.java import find_java
from holdfast_lab.workloads.flink_install import ensure_flink

__all__ = ["FlinkJob", "FlinkSession", "flink_session"]

_OPENED = (
    "java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text", "java.time",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks",
)  # fmt: skip
"""What Flink's own configuration opens to it in a modern Java."""

_LOGGING = """\
rootLogger.level = ERROR
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1} %m%n
"""

_SETTINGS = {
    "execution.target": "local",
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.managed.size": "1g",
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
    "table.local-time-zone": "UTC",
    "metrics.fetcher.update-interval": "100 ms",
    # As in the paper; without it every record is copied between chained operators.
    "pipeline.object-reuse": "true",
}
_HEAP = "3g"
_SECONDS_TO_END = 10.0
_SECONDS_TO_ANSWER = 10.0


@dataclass(slots=True)
class FlinkJob:
    """A running job."""

    session: FlinkSession
    client: Any
    number: str

    def get(self, path: str = "") -> Any:
        """What the REST interface says of the job, or None if the job is over and its cluster with it."""
        return self.session.get(f"/jobs/{self.number}{path}")

    def running(self) -> bool:
        told = self.get()
        return told is not None and told["state"] in ("CREATED", "INITIALIZING", "RUNNING")

    def wait(self) -> None:
        """Until the job has ended by itself."""
        self.session.call(self.client.getJobExecutionResult().get)

    def cancel(self) -> None:
        with suppress(Py4JError):  # it may have ended meanwhile
            self.client.cancel().get()


class FlinkSession:
    """A table environment in a Java process."""

    def __init__(self, gateway: JavaGateway, settings: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._settings = settings
        self._port = settings["rest.port"]
        java = gateway.jvm
        configuration = java.org.apache.flink.configuration.Configuration()
        for key, value in settings.items():
            configuration.setString(key, value)
        self._configuration = configuration
        api = java.org.apache.flink.table.api
        chosen = api.EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration).build()
        self._tables = self.call(api.TableEnvironment.create, chosen)

    def fresh(self) -> FlinkSession:
        """Another one in the same process, without the tables and views of this one."""
        return FlinkSession(self._gateway, self._settings)

    def run(self, *statements: str) -> None:
        """Statements that start no job."""
        for statement in statements:
            self.call(self._tables.executeSql, statement)

    def start(self, insert: str) -> FlinkJob:
        client = self.call(self._tables.executeSql, insert).getJobClient().get()
        return FlinkJob(self, client, str(client.getJobID().toString()))

    def submit(self, start: Callable[[Any, Any], Any]) -> FlinkJob:
        """A job of classes on the class path: `start` gets Java's packages and the configuration, and returns the
        job's client."""
        client = self.call(start, self._gateway.jvm, self._configuration)
        return FlinkJob(self, client, str(client.getJobID().toString()))

    def plan(self, statement: str) -> str:
        """How Flink would execute a statement."""
        rows = self.call(self._tables.executeSql, f"EXPLAIN PLAN FOR {statement}").collect()
        return str(rows.next().getField(0))

    def get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://localhost:{self._port}{path}", timeout=_SECONDS_TO_ANSWER) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call into Java; what goes wrong there comes back with all its causes."""
        try:
            return function(*arguments)
        except Py4JJavaError as error:
            causes = []
            cause = error.java_exception
            while cause is not None:
                causes.append(str(cause.toString())[:1_000])
                cause = cause.getCause()
            raise EpochFailedError(
                f"Flink failed: {'; because: '.join(causes)}", cure="see the first error above, or the statement"
            ) from None


@contextmanager
def flink_session(
    place: Path, settings: Mapping[str, str] | None = None, *, classes: Path | None = None, heap: str = _HEAP
) -> Iterator[FlinkSession]:
    """A session whose files are in `place`; its process has ended when the context is left. `classes` is a directory
    of further classes."""
    jars = ensure_flink()
    place.mkdir(parents=True, exist_ok=True)
    logging = place / "log4j.properties"
    logging.write_text(_LOGGING)
    temporary = place / "tmp"
    temporary.mkdir(exist_ok=True)
    options = [f"-Xmx{heap}", f"-Djava.io.tmpdir={temporary}", f"-Dlog4j.configurationFile={logging.as_uri()}"]
    options += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    chosen = {**_SETTINGS, "io.tmp.dirs": str(temporary), "rest.port": str(_free_port()), **(settings or {})}
    with (place / "flink.log").open("wb") as log:
        port, process = launch_gateway(
            port=0,
            classpath=":".join(map(str, [*([] if classes is None else [classes]), *sorted(jars.glob("*.jar"))])),
            javaopts=options,
            java_path=str(find_java().java),
            die_on_exit=True,
            return_proc=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
        try:
            # The process lives for one query, so nothing is ever handed back to its memory: a Python object that is
            # collected after the end would speak to a process that is gone.
            parameters = GatewayParameters(port=port, auto_convert=True, enable_memory_management=False)
            gateway = JavaGateway(gateway_parameters=parameters)
            try:
                yield FlinkSession(gateway, chosen)
            finally:
                gateway.close()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process ends when its input does; if not, it is killed."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _free_port() -> int:
    """A port that is free and stays so until Flink binds it: not one of those that systems give to connections."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("localhost", port))
            return port
