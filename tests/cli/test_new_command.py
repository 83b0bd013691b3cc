"""A command that Holdfast does not have, written as `docs/extending.md` says: one module, and a line in a list. Another
distribution adds its own by an entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast.cli
from holdfast.cli import group, main

EPOCHS = '''
"""`holdfast epochs`: how many epochs a pipeline has committed."""

from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import store_option


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@store_option
def epochs(pipeline: str, store: Path) -> None:
    """Say how many epochs PIPELINE has committed."""
    from holdfast.meta import opened_meta

    with opened_meta(store, None) as meta:
        click.echo(f"{pipeline}: {meta.last_epoch(pipeline)}")
'''


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def seen_as_it_should_be(tmp_path: Path) -> None:
    assert "  epochs " in invoke("--help").output
    assert "Say how many epochs PIPELINE has committed." in invoke("epochs", "--help").output
    assert invoke("epochs").exit_code == 2
    failed = invoke("epochs", "p", "--store", str(tmp_path / "nowhere"))
    assert failed.exit_code == 1
    assert "there is no store" in failed.output
    assert "Traceback" not in failed.output


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What was imported for a test is gone after it."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.rpartition(".")[2] == "epochs" or name.partition(".")[0] == "more_commands":
            del sys.modules[name]


def test_in_the_product_it_is_a_module_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "epochs.py").write_text(EPOCHS)
    monkeypatch.setattr(holdfast.cli, "__path__", [*holdfast.cli.__path__, str(tmp_path)])
    monkeypatch.setitem(group.COMMANDS, "epochs", "Say how many epochs were committed.")
    seen_as_it_should_be(tmp_path)


def test_another_distribution_adds_one_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package := tmp_path / "more_commands").mkdir()
    (package / "__init__.py").write_text('COMMANDS = {"epochs": "Say how many epochs were committed."}\n')
    (package / "epochs.py").write_text(EPOCHS)
    (described := tmp_path / "more_commands-1.0.dist-info").mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: more-commands\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[holdfast.commands]\nmore = more_commands:COMMANDS\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "Commands of more_commands:" in invoke("--help").output
    seen_as_it_should_be(tmp_path)
