"""Java programs that an experiment compares with, from the Maven repository that the machine is set up for.

`fetch` asks Maven if it is there, and else Ivy, which comes with PySpark. Both read their own settings, so a mirror
that the user has configured is used; no address is written here. What was fetched stays in the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark

from holdfast.errors import HoldfastError
from holdfast.spark.java import find_java

__all__ = ["cache", "fetch"]

_PATIENCE_SECONDS = 600
_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>holdfast</groupId><artifactId>{name}</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_POM_DEPENDENCY = """\
    <dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>{more}</dependency>"""
_POM_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_IVY = """\
<ivy-module version="2.0">
  <info organisation="holdfast" module="{name}"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_IVY_DEPENDENCY = """    <dependency org="{0}" name="{1}" rev="{2}" conf="*->default"{more}/>"""
_IVY_ALONE = ' transitive="false"'


def cache() -> Path:
    """Where commands keep what they have fetched: below `$XDG_CACHE_HOME`, else `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "holdfast"


def fetch(name: str, artifacts: Sequence[str], say: Callable[[str], None], *, alone: bool = False) -> Path:
    """A directory with the jars of the artifacts (`group:artifact:version`) and, unless they are wanted `alone`, of all
    they need.

    A directory that is there is whole: it gets its name when everything is in it.
    """
    place = cache() / name
    if place.is_dir():
        return place
    say(f"fetching {', '.join(artifacts)}, once")
    place.parent.mkdir(parents=True, exist_ok=True)
    parts = [artifact.split(":") for artifact in artifacts]
    problems = []
    for tool in (_maven, _ivy):
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=place.parent) as directory:
            work = Path(directory)
            problem = tool(name, parts, work, alone)
            if problem is None:
                try:
                    (work / "jars").rename(place)
                except OSError:  # another process was faster
                    if not place.is_dir():
                        raise
                return place
            problems.append(problem)
    raise HoldfastError(
        f"cannot fetch {', '.join(artifacts)}: {'; '.join(problems)}",
        cure="see that a Maven repository can be reached, and set Maven's or Ivy's settings up for a mirror if need be",
    )


def _maven(name: str, parts: Sequence[Sequence[str]], work: Path, alone: bool) -> str | None:
    """What went wrong, if anything."""
    maven = shutil.which("mvn")
    if maven is None:
        return "mvn is not on the PATH"
    dependencies = "\n".join(_POM_DEPENDENCY.format(*part, more=_POM_ALONE if alone else "") for part in parts)
    (work / "pom.xml").write_text(_POM.format(name=name, dependencies=dependencies))
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
    return _run([maven, "-q", "-B", *goal], work)


def _ivy(name: str, parts: Sequence[Sequence[str]], work: Path, alone: bool) -> str | None:

    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not found:
        return "this PySpark has no Ivy"
    dependencies = "\n".join(_IVY_DEPENDENCY.format(*part, more=_IVY_ALONE if alone else "") for part in parts)
    (work / "ivy.xml").write_text(_IVY.format(name=name, dependencies=dependencies))
    pattern = f"{work / 'jars'}/[artifact]-[revision].[ext]"
    command = [str(find_java().java), "-jar", str(found[-1]), "-error", "-ivy", "ivy.xml"]
    # A cache of its own: what Spark has in the shared one was resolved for Spark.
    return _run([*command, "-cache", str(work / "cache"), "-types", "jar", "bundle", "-retrieve", pattern], work)


def _run(command: list[str], work: Path) -> str | None:
    tool = Path(command[0]).name
    try:
        told = subprocess.run(
            command, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{tool}: {error}"
    if told.returncode != 0 or not any((work / "jars").glob("*.jar")):
        lines = [line for line in (told.stdout + told.stderr).splitlines() if line.strip()]
        return f"{tool} ended with {told.returncode}: {' '.join(lines[-3:])}"
    return None
