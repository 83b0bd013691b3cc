"""What the documentation names is there: files, links, commands and their options."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import holdfast as hf
from holdfast.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
ROOTS = ["", "src/holdfast", "lab/src/holdfast_lab", "lab/src/holdfast_lab/experiment"]
"""Where a path in the text may begin."""
OF_USERS = {"campaigns.py", "orders.py", "utils.py", "visits.py"}
"""Files that somebody else has, or that nobody should have."""
STANDS_FOR = re.compile(r"\b[A-Z]{4,}\b")
"""A word in a path for which a reader puts their own."""

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def inline(page: Path) -> Iterator[str]:
    """What stands in backquotes within the text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for line in text.replace("\n", " \n").splitlines():
        if not line.startswith("    "):
            yield from re.findall(r"`([^`]+)`", line)


@pages
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    known = {
        path.name for place in ("src", "lab", "tests", "docs", "examples") for path in (ROOT / place).rglob("*.py")
    }
    named = {
        code for code in inline(page) if re.fullmatch(r"[\w./-]+\.py", code) and not STANDS_FOR.search(code)
    } - OF_USERS
    missing = [
        code
        for code in named
        if not (any((ROOT / begin / code).is_file() for begin in ROOTS) if "/" in code else code in known)
    ]
    assert missing == []


@pages
def test_the_directories_that_a_page_names_are_there(page: Path) -> None:
    begins = ("src/", "lab/", "tests/", "docs/", "examples/")
    named = {code for code in inline(page) if re.fullmatch(r"[\w./-]+/", code) and not STANDS_FOR.search(code)}
    assert [code for code in named if code.startswith(begins) and not (ROOT / code).is_dir()] == []


@pages
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in set(anchors(target))):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> Iterator[str]:
    """The headings of a page as GitHub makes anchors of them."""
    for title in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pages
def test_the_commands_and_options_that_a_page_names_are_there(page: Path) -> None:
    context = click.Context(main)
    wrong = []
    for line in page.read_text(encoding="utf-8").splitlines():
        for words in re.findall(r"(?:^|`|\$ |\|\s*`)\s*holdfast ([a-z][^`#|]*)", line):
            name, *given = words.split()
            command = main.get_command(context, name) if name in main.list_commands(context) else None
            while isinstance(command, click.Group) and given and given[0] in command.commands:
                command = command.commands[given.pop(0)]
            if command is None:
                wrong.append(words)
                continue
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            asked = {word.split("=")[0].strip("[](),.") for word in given if re.match(r"\[?--[a-z]", word)}
            wrong += [f"{name} {option}" for option in asked - known - {"--help"}]
    assert wrong == []


@pages
def test_the_options_that_a_page_names_by_themselves_are_there(page: Path) -> None:
    known = set(options_of(main))
    named = {code.split()[0].split("=")[0] for code in inline(page) if re.match(r"--[a-z]", code)}
    assert named - known == set()


def test_the_page_about_porting_shows_every_job_as_the_tests_run_it() -> None:
    spec = importlib.util.spec_from_file_location("porting_page", ROOT / "docs/porting.py")
    assert spec is not None
    assert spec.loader is not None
    porting = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(porting)
    text = porting.PAGE.read_text(encoding="utf-8")
    assert porting.rendered(text) == text, "run `make reference`"
    shown = porting.shown(text)
    jobs = {path.stem: path.read_text(encoding="utf-8") for path in porting.JOBS.glob("*.py")}
    assert shown.keys() == jobs.keys()
    for name, job in jobs.items():
        assert set(re.findall(r"^(?:def|class) (\w+)", job, flags=re.MULTILINE)) == set(shown[name])


def options_of(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options_of(inner)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "migration.md"], ids=lambda page: page.name)
def test_the_public_names_that_a_page_names_are_there(page: Path) -> None:
    """The page about migration names those that are gone."""
    missing = []
    for path in set(re.findall(r"\bhf\.([a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)*)", page.read_text(encoding="utf-8"))):
        value: object = hf
        for name in path.split("."):
            if not hasattr(value, name):
                missing.append(path)
                break
            value = getattr(value, name)
    assert missing == []
