"""Which pipeline a file on the command line means, and what is said where it means none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import cloudpickle

from holdfast.cli.pipeline_file import load_pipeline
from holdfast.errors import PipelineFileError, UnknownColumnError

ONE = """
import polars as pl
import holdfast as hf

def make(name: str = "one") -> hf.Pipeline:
    pipeline = hf.Pipeline(name)
    rows = pipeline.source("rows", hf.source.memory(pl.DataFrame({"x": [1, 2]})))
    rows.filter("x > 1").sink("out", hf.sink.collect())
    return pipeline
"""


def write(tmp_path: Path, text: str, name: str = "file.py") -> str:
    path = tmp_path / name
    path.write_text(ONE + text)
    return str(path)


def test_the_only_pipeline_needs_no_name(tmp_path: Path) -> None:
    assert load_pipeline(write(tmp_path, "only = make()\nalso = only")).name == "one"


def test_a_name_chooses_among_several(tmp_path: Path) -> None:
    target = write(tmp_path, "a = make('first')\nb = make('second')")
    assert load_pipeline(f"{target}:b").name == "second"
    with pytest.raises(PipelineFileError, match="several pipelines: a, b"):
        load_pipeline(target)


def test_a_function_that_returns_a_pipeline_is_called(tmp_path: Path) -> None:
    target = write(tmp_path, "")
    assert load_pipeline(target).name == "one"
    assert load_pipeline(f"{target}:make").name == "one"


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("del make", "", "has no pipeline"),
        ("", ":missing", "has no 'missing'"),
        ("number = 3", ":number", "is a int, not a pipeline"),
        ("def needs(x): return make()", ":needs", "needs arguments: x"),
        ("def wrong(): return 3", ":wrong", "returned a int"),
        ("def broken(): return 1 / 0", ":broken", "line 10: ZeroDivisionError"),
        ("1 / 0", "", "line 10: ZeroDivisionError"),
        ("this is no Python", "", "line 10: invalid syntax"),
    ],
)
def test_a_file_without_the_pipeline_says_what_is_wrong(tmp_path: Path, text: str, name: str, problem: str) -> None:
    with pytest.raises(PipelineFileError, match=problem):
        load_pipeline(write(tmp_path, text) + name)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(PipelineFileError, match=r"nowhere\.py does not exist"):
        load_pipeline("nowhere.py")


def test_an_error_of_the_declaration_comes_through(tmp_path: Path) -> None:
    with pytest.raises(UnknownColumnError):
        load_pipeline(write(tmp_path, "make().stream('rows').filter('y > 1')"))


def test_functions_of_the_file_travel_by_value(tmp_path: Path) -> None:
    pipeline = load_pipeline(
        write(tmp_path, "def double(rows): return rows\np = make()\np.stream('rows').map_batches(double)")
    )
    function = pipeline.nodes["map_batches"].function  # type: ignore[attr-defined]
    # By reference, unpickling would find the very same function again.
    assert cloudpickle.loads(cloudpickle.dumps(function)) is not function


def test_the_file_can_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_file.py").write_text("NAME = 'from-neighbour'")
    target = write(tmp_path, "import neighbour_of_file\np = make(neighbour_of_file.NAME)")
    assert load_pipeline(target).name == "from-neighbour"
