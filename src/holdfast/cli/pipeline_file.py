"""Finding the pipeline in a Python file.

The file is run as a module under a private name, with its directory on the import path: last, so that a file called
`queue.py` is no danger to anybody. What it defines is pickled by value into the tasks, since no worker can import it
by that name.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from holdfast.errors import HoldfastError, PipelineFileError
from holdfast.graph.pipeline import Pipeline

__all__ = ["load_pipeline"]


def load_pipeline(target: str) -> Pipeline:
    """The pipeline that `FILE` or `FILE:NAME` means.

    NAME is a pipeline of the file or a function without arguments that returns one. Without NAME the file's only
    pipeline is meant or, where it has none, its only function that is annotated to return one.
    """
    path, name = _split(target)
    module = _execute(path)
    if name is None:
        name = _only_name(path, module)
    elif not hasattr(module, name):
        raise PipelineFileError(
            f"{path} has no '{name}'", cure=f"name one of: {', '.join(_candidates(module)) or 'nothing in it'}"
        )
    found = _pipeline_of(path, name, getattr(module, name))
    found.target = f"{path.resolve()}:{name}"
    return found


def _pipeline_of(path: Path, name: str, found: Any) -> Pipeline:
    if isinstance(found, Pipeline):
        return found
    if not callable(found):
        raise PipelineFileError(
            f"'{name}' in {path} is a {type(found).__name__}, not a pipeline",
            cure="name a Pipeline, or a function without arguments that returns one",
        )
    return _call(path, name, found)


def _split(target: str) -> tuple[Path, str | None]:
    path, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and not Path(target).exists():
        return _existing(Path(path)), name
    return _existing(Path(target)), None


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise PipelineFileError(f"file {path} does not exist", cure="give a Python file, as FILE.py or FILE.py:NAME")
    return path


def _execute(path: Path) -> ModuleType:
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.append(directory)
    name = f"_holdfast_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise PipelineFileError(f"{path} is not a Python file", cure="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        spec.loader.exec_module(module)
    except HoldfastError:
        raise
    except Exception as error:
        raise _raised(path, error) from error
    return module


def _raised(path: Path, error: Exception) -> PipelineFileError:
    if isinstance(error, SyntaxError):
        where, what = error.lineno, f"{error.msg}"
    else:
        inside = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path.resolve()]
        where, what = (inside[-1] if inside else None), f"{type(error).__name__}: {error}"
    line = f", line {where}" if where is not None else ""
    return PipelineFileError(f"{path}{line}: {what}", cure="correct the file; --traceback shows the whole error")


def _candidates(module: ModuleType) -> dict[str, Any]:
    """Pipelines of the module by name, and functions made in it that say they return one."""
    return {**_pipelines(module), **_functions(module)}


def _pipelines(module: ModuleType) -> dict[str, Pipeline]:
    found: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, Pipeline):
            found.setdefault(id(value), name)  # a second name for the same pipeline is no second pipeline
    return {name: getattr(module, name) for name in found.values()}


def _functions(module: ModuleType) -> Mapping[str, Any]:
    def returns_pipeline(value: object) -> bool:
        if not inspect.isfunction(value) or value.__module__ != module.__name__:
            return False
        said = value.__annotations__.get("return")
        return said is Pipeline or (isinstance(said, str) and said.rpartition(".")[2] == Pipeline.__name__)

    return {name: value for name, value in vars(module).items() if returns_pipeline(value)}


def _only_name(path: Path, module: ModuleType) -> str:
    names = list(_pipelines(module)) or list(_functions(module))
    if len(names) == 1:
        return names[0]
    if names:
        raise PipelineFileError(
            f"{path} has several pipelines: {', '.join(names)}", cure=f"say which one: {path}:{names[0]}"
        )
    raise PipelineFileError(
        f"{path} has no pipeline",
        cure="assign one to a name of the module, e.g. pipeline = hf.Pipeline('name'), or write a function"
        " 'def build() -> hf.Pipeline'",
    )


def _call(path: Path, name: str, function: Any) -> Pipeline:
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise PipelineFileError(f"'{name}' in {path} needs arguments: {', '.join(needed)}", cure="give them defaults")
    try:
        made = function()
    except HoldfastError:
        raise
    except Exception as error:
        raise _raised(path, error) from error
    if not isinstance(made, Pipeline):
        raise PipelineFileError(
            f"'{name}' in {path} returned a {type(made).__name__}", cure="return the Pipeline from it"
        )
    return made
