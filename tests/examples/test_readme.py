"""The README's example declares as it stands, in a directory where nothing is prepared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cli.pipeline_file import load_pipeline

ROOT = Path(__file__).parents[2]


def block(text: str) -> str:
    found = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(found) == 1, "the README has one example in Python"
    return str(found[0])


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "campaigns.py"
    path.write_text(block((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    return path


@pytest.mark.parametrize("made", [False, True], ids=["no directory", "an empty directory"])
def test_the_example_declares_before_there_is_any_input(example: Path, made: bool) -> None:
    if made:
        Path("in").mkdir()
    told = hf.explain(load_pipeline(str(example)))
    assert "stage 1" in told
    assert "exactly once" in told


def test_the_docstring_s_example_declares_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hf.__doc__ is not None
    lines = [line.removeprefix("    ") for line in hf.__doc__.splitlines() if line.startswith("    ")]
    path = tmp_path / "clicks.py"
    path.write_text("\n".join(line for line in lines if line != "hf.run(pipeline)"), encoding="utf-8")
    assert "exactly once" in hf.explain(load_pipeline(str(path)))
