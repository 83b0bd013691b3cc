"""What is in `deploy/` fits the product: commands and options, versions, users, and times to end."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import holdfast
from holdfast.cli import main
from holdfast.replica import host, supervisor

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "holdfast"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
USER = 10001

units = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a command line, if it is one: click checks names and values."""
    program, name, *arguments = words
    assert Path(program).name == "holdfast"
    if name.startswith("-"):
        return {}
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    return command.make_context(name, arguments).params


def read_unit(unit: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(unit.read_text(encoding="utf-8"))
    return found


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# systemd


@units
def test_a_unit_starts_a_command_that_there_is_and_gives_it_time_to_end(unit: Path) -> None:
    service = read_unit(unit)["Service"]
    variables = {"HOLDFAST_STORE": "/srv/store", "HOLDFAST_OPTIONS": "--detection 3s"}
    line = re.sub(r"\$\{?(\w+)\}?", lambda name: variables[name.group(1)], service["ExecStart"].replace("%i", "clicks"))
    assert parsed(shlex.split(line))["detection"] == 3.0
    ends = supervisor._SECONDS_TO_END if "holdfast up" in line else host._SECONDS_TO_END
    assert seconds(service["TimeoutStopSec"]) > ends
    assert service["KillMode"] == "mixed", "hosts are ended by who has started them"
    assert service["Restart"] == "on-failure"
    assert service["User"] == "holdfast"
    assert "MemoryDenyWriteExecute" not in service, "Java could not start"


@units
def test_a_unit_has_the_variables_that_it_uses(unit: Path) -> None:
    sample = (DEPLOY / "systemd" / "holdfast.env").read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{?(\w+)\}?", read_unit(unit)["Service"]["ExecStart"]))
    assert used <= set(re.findall(r"^#?([A-Z_]+)=", sample, re.MULTILINE))


@units
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    instance = tmp_path / unit.name.replace("@", "@clicks")
    program = shutil.which("true")
    instance.write_text(unit.read_text(encoding="utf-8").replace("/opt/holdfast/bin/holdfast", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(instance)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line]) == (
        0,
        [],
    )


# the image


def instructions() -> Iterator[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def test_the_image_runs_commands_that_there_are() -> None:
    lists = [json.loads(found) for _, rest in instructions() for found in re.findall(r"(\[\"holdfast\".*\])", rest)]
    assert [words[:2] for words in lists] == [["holdfast", "prepare"], ["holdfast", "status"], ["holdfast"]]
    for words in lists[:2]:
        parsed(words)


def test_the_image_has_every_optional_library_and_a_python_that_fits() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extras] = {found for _, rest in instructions() for found in re.findall(r"holdfast\[([\w,]+)\]", rest)}
    assert sorted(extras.split(",")) == sorted(project["optional-dependencies"])
    bases = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    [base] = bases
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert tuple(map(int, re.findall(r"python:(\d+)\.(\d+)-slim", base)[0])) >= least


def test_the_image_is_built_of_files_that_there_are_and_that_are_sent() -> None:
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert rules[0] == "*"
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(fnmatch(source, rule[1:]) for rule in rules if rule.startswith("!")), source


def test_image_chart_and_units_agree_on_a_user_who_is_not_root() -> None:
    assert [rest for name, rest in instructions() if name == "USER"] == [f"{USER}:{USER}"]
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    assert set(re.findall(r"(?:runAsUser|runAsGroup|fsGroup): (\d+)", helpers)) == {str(USER)}
    assert f"u holdfast {USER} " in (DEPLOY / "systemd" / "holdfast.sysusers").read_text(encoding="utf-8")


# the chart


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["apiVersion"] == "v2"
    released = re.match(r"\d+\.\d+\.\d+", holdfast.__version__)
    assert released is not None
    assert chart["appVersion"] == chart["version"] == released.group()


def test_templates_use_values_that_there_are_and_every_value_is_used() -> None:
    texts = "\n".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    used = {tuple(path.split(".")) for path in re.findall(r"\.Values\.([\w.]+)", texts)}
    known = values()
    for path in used:
        place: Any = known
        for key in path:
            assert key in place, ".".join(path)
            place = place[key]
    assert {path[0] for path in used} == set(known)
    for key, inner in known.items():
        if isinstance(inner, dict) and (key,) not in used:
            assert {path[1] for path in used if path[0] == key} == set(inner), key


@pytest.mark.parametrize(("template", "count"), [("control", 1), ("hosts", 2), ("init", 1)])
def test_a_template_starts_commands_and_options_that_there_are(template: str, count: int) -> None:
    text = (CHART / "templates" / f"{template}.yaml").read_text(encoding="utf-8")
    parts = text.split("command: [holdfast, ")[1:]
    assert len(parts) == count
    for part in parts:
        name = re.split(r"\W", part, maxsplit=1)[0]
        command = main.get_command(click.Context(main), name)
        assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        given = re.split(r"^ +(?:env|resources):", part, maxsplit=1, flags=re.MULTILINE)[0]
        assert {"--role", "--store"} & set(named := re.findall(r"--[a-z][a-z-]*", given))
        assert set(named) <= known


def test_a_pod_has_time_to_hand_over() -> None:
    assert values()["terminationGracePeriodSeconds"] >= host._SECONDS_TO_END + 30


EVERYTHING = [
    "--set", "init.enabled=true,init.adminUrl=postgresql://postgres@db/holdfast,init.adminPasswordSecret.name=admin",
    "--set", "init.rolePasswordSecret.name=role,control.ports[0].name=http,control.ports[0].port=8080",
    "--set", "scheme=active standby,store.storageClassName=nfs,nodeSelector.disk=fast",
    "--set-json", 'options=["--latency", "200ms"]', "--set-json", 'hostOptions=["--executor=jobs"]',
    "--set-json", 'extraEnv=[{"name": "A", "value": "b"}]',
    "--set-json", 'extraVolumes=[{"name": "data", "emptyDir": {}}]',
    "--set-json", 'extraVolumeMounts=[{"name": "data", "mountPath": "/data"}]',
]  # fmt: skip


@pytest.mark.skipif(
    shutil.which("helm") is None and "HELM" not in os.environ, reason="helm is not installed; HELM may name it"
)
@pytest.mark.parametrize("more", [[], EVERYTHING], ids=["plain", "everything"])
def test_helm_renders_pods_whose_commands_are_right(more: list[str], tmp_path: Path) -> None:
    helm = os.environ.get("HELM", "helm")
    program = tmp_path / "clicks.py"
    program.write_text("import holdfast as hf\n\npipeline = hf.Pipeline('clicks')\n")
    given = ["--set-file", f"program={program}", *more]
    subprocess.run([helm, "lint", "--strict", str(CHART), *given], check=True, timeout=60)
    rendered = subprocess.run(
        [helm, "template", "my", str(CHART), "--kube-version", "1.33.0", *given],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    found = [one for one in yaml.safe_load_all(rendered) if one]
    assert next(one for one in found if one["kind"] == "ConfigMap")["data"] == {"pipeline.py": program.read_text()}
    pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] in ("StatefulSet", "Deployment", "Job")]
    assert len(pods) == (3 if more else 2)
    for pod in pods:
        [container] = pod["containers"]
        options = parsed([*container["command"], *container.get("args", [])])
        if options.get("count") == 0:
            assert options["scheme"] == ("active standby" if more else None)
        probe = container.get("readinessProbe")
        if probe is not None:
            parsed(probe["exec"]["command"])
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
