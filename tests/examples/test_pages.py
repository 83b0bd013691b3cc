"""The code of the first pages runs as it stands and gives what they show; the site says of the code what it has."""

from __future__ import annotations

import importlib.util
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

import holdfast as hf
from holdfast.cli.pipeline_file import load_pipeline
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast_lab.experiment.registry import names

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"of_pages_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_the_first_pipeline_gives_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page("index.md")
    make, declare, look = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    exec(compile(make, "make", "exec"), {})
    Path("visits.py").write_text(declare, encoding="utf-8")
    options = hf.RunOptions(store=Path("store"), until_idle=True)
    FragmentRun(load_pipeline("visits.py"), InProcessPlatform(), options).run()
    capsys.readouterr()
    exec(compile(look, "look", "exec"), {})
    shown = "\n".join(line.removeprefix("    ") for line in text.splitlines() if re.match(r"    (shape|[┌│╞└])", line))
    assert capsys.readouterr().out.strip() == shown
    assert pl.read_parquet("out")["window_start"].n_unique() == 9, "minutes, of ten"


def test_the_page_about_keyed_state_tests_its_pipeline() -> None:
    code = re.search(r"^(    with hf.*?)\n\n\S", page("keyed-state.md"), flags=re.MULTILINE | re.DOTALL)
    assert code is not None
    declared = module(ROOT / "examples/porting/keyed_state.py")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    given = {"hf": hf, "holdfast_pipeline": declared.holdfast_pipeline, "start": start, "timedelta": timedelta}
    exec(compile("\n".join(line[4:] for line in code[1].splitlines()), "keyed-state.md", "exec"), given)


def test_tutorials_show_the_jobs_as_the_tests_run_them() -> None:
    porting = module(ROOT / "docs/porting.py")
    for tutorial in porting.TUTORIALS:
        text = tutorial.read_text(encoding="utf-8")
        assert porting.shown(text)
        assert porting.rendered(text) == text, "run `make reference`"


def test_every_experiment_is_in_the_table_of_figures() -> None:
    rows = [line for line in page("papers.md").splitlines() if "holdfast experiment" in line]
    named = {name for row in rows for name in re.findall(r"`(?:holdfast experiment )?([\w-]+)`", row)}
    assert set(names()) <= named


def test_the_site_has_every_command_and_every_error_with_its_cures() -> None:
    site = module(ROOT / "docs/docs_site.py")
    options, errors = "\n".join(site.option_pages()), "\n".join(site.error_pages())
    assert {"## holdfast run", "## holdfast laar solve", "## holdfast ui"} <= set(options.splitlines())
    assert "`--until-idle`" in options
    assert {f"## {name}" for name in hf.errors.__all__} <= set(errors.splitlines())
    assert "| … needs the library '…', which is not installed | pip install 'holdfast\\[…\\]' |" in errors
    assert sum(len(rows) for rows in site.fault_list().values()) > 500
    assert site.made(page("errors.md")).endswith(errors + "\n")


def test_the_site_shows_every_page() -> None:
    listed = set(re.findall(r'= "([\w-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8")))
    site = module(ROOT / "docs/docs_site.py")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} | set(site.FROM_ROOT.values())
    assert listed == pages, "`nav` in zensical.toml lists the pages"
