"""Writes `reference.md`: every public name with its signature and what its docstring says first. `make reference`."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import holdfast

__all__ = ["PAGE", "PublicName", "exported", "members", "public_names", "rendered", "signature_types"]

PAGE = Path(__file__).with_suffix(".md")
_WIDTH = 110
_OPENING = """# Reference

Every public name, by what it is for; `hf` is `import holdfast as hf`. Whatever is not here is not public and may change
with any version. `help(hf.run)` shows the whole text of a name. `make reference` makes this page from the docstrings.
"""
_SECTIONS = {
    "holdfast.graph.aggregates": "Aggregates",
    "holdfast.graph.hyperloglog": "Aggregates",
    "holdfast.graph": "Declaring a pipeline",
    "holdfast.errors": "Errors",
    "holdfast.state": "What a run leaves",
    "holdfast.connect": "What a run leaves",
    "holdfast.engine.transfer": "What a run leaves",
    "holdfast.engine.epoch_rerun": "What a run leaves",
    "holdfast.engine.rerun_result": "What a run leaves",
    "holdfast.engine.row_origin": "What a run leaves",
    "holdfast.engine.row_search": "What a run leaves",
    "holdfast.remedy": "After a failure",
}
_RUNNING = "Running"
_MADE_BY_METHODS = (
    holdfast.Stream,
    holdfast.KeyedStream,
    holdfast.WindowedStream,
    holdfast.Running,
    holdfast.OwnCluster,
)
_NOT_SHOWN = ("RunOptions.host",)
"""Fields that no user sets."""
_ORDER = ("Declaring a pipeline", "Aggregates", _RUNNING, "What a run leaves", "After a failure", "Errors")


@dataclass(frozen=True, slots=True)
class PublicName:
    """A name as a user writes it behind `hf.`, what it stands for, and what is said about it."""

    path: str
    value: object
    doc: str

    @property
    def first(self) -> str:
        """The first paragraph, on one line."""
        return _first(self.doc)


def public_names() -> list[PublicName]:
    """All of them: those of `holdfast` itself, its namespaces, and the names in these."""
    found = []
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        found.append(PublicName(name, value, _doc(holdfast, name, value)))
        if isinstance(value, ModuleType):
            for inner in exported(value):
                given = getattr(value, inner)
                found.append(PublicName(f"{name}.{inner}", given, _doc(value, inner, given)))
    return found


def exported(space: ModuleType) -> list[str]:
    """The names in a namespace."""
    return list(getattr(space, "__all__", ())) or [name for name in vars(space) if not name.startswith("_")]


def members(kind: type) -> Iterator[tuple[str, object]]:
    """The public methods and properties that a class defines itself."""
    for name, value in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | staticmethod)):
            yield name, value.__func__ if isinstance(value, staticmethod) else value


def rendered() -> str:
    """The whole page."""
    names = public_names()
    spaces = [name for name in names if isinstance(name.value, ModuleType) and name.path != "errors"]
    plain = [name for name in names if "." not in name.path and not isinstance(name.value, ModuleType)]
    parts = [_OPENING]
    for title in _ORDER:
        parts += [f"## {title}\n", *(_entry(name) for name in plain if _section(name.value) == title)]
        if title == "Errors":
            parts.append(_errors([name for name in names if name.path.startswith("errors.")]))
        if title == _ORDER[0]:
            for space in spaces:
                inside = [name for name in names if name.path.startswith(f"{space.path}.")]
                inside.sort(key=lambda name: not inspect.isroutine(name.value))
                parts += [f"## `hf.{space.path}`\n", f"{_wrapped(space.first)}\n", *(_entry(name) for name in inside)]
    return "\n".join([*parts, _types()])


def signature_types() -> dict[str, str]:
    """What of Holdfast stands in public signatures and is no public name itself, with what is said about it."""
    public = {name.path.rpartition(".")[2] for name in public_names()}
    found: dict[str, str] = {}
    texts = [(importlib.import_module(value.__module__), _annotations(value)) for value in _signed()]
    for module, text in texts:  # which grows: what a type stands for may name others
        for word in re.findall(r"(?<![\w.'\"])[A-Za-z]\w*(?![\w.'\"])", text):
            home = None if word in public or word in found else _definition(module, word)
            if home is not None:
                found[word] = _explained(word, *home)
                if isinstance(home[1], ast.Assign):
                    texts.append((home[0], ast.unparse(home[1].value)))
    return dict(sorted(found.items()))


def _annotations(value: object) -> str:
    signature = inspect.signature(value)  # type: ignore[arg-type]
    annotations = [signature.return_annotation, *(each.annotation for each in signature.parameters.values())]
    return " ".join(_type(each) for each in annotations if each is not inspect.Signature.empty)


def _signed() -> Iterator[object]:
    """All that is public and has a signature."""
    for name in public_names():
        if inspect.isclass(name.value):
            if _can_be_made(name.value):
                yield name.value
            yield from (value.fget if isinstance(value, property) else value for _, value in members(name.value))
        elif inspect.isroutine(name.value):
            yield name.value


def _definition(module: ModuleType, name: str) -> tuple[ModuleType, ast.stmt, ast.stmt | None] | None:
    """Where a name of a module is defined, and what stands behind it; None if it is not Holdfast's."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, after in itertools.zip_longest(body, body[1:]):
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return module, statement, after
        if isinstance(statement, ast.Assign) and any(ast.unparse(target) == name for target in statement.targets):
            return module, statement, after
    for statement in ast.walk(ast.Module(body, [])):
        if isinstance(statement, ast.ImportFrom) and any(alias.name == name for alias in statement.names):
            source = statement.module or ""
            return _definition(importlib.import_module(source), name) if source.startswith("holdfast") else None
    return None


def _explained(name: str, module: ModuleType, statement: ast.stmt, after: ast.stmt | None) -> str:
    if not isinstance(statement, ast.Assign):
        return _first(inspect.getdoc(getattr(module, name)) or "")
    text = f"`{ast.unparse(statement.value)}`"
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
        return f"{text}. {_first(str(after.value.value))}"
    return text


def _types() -> str:
    lines = [
        "## Types in signatures\n",
        _wrapped("What signatures name and no program has to: the names above make it, or it stands for other types.")
        + "\n",
    ]
    for name, text in signature_types().items():
        lines.append(
            textwrap.fill(
                f"- `{name}`: {text}", _WIDTH + 10, subsequent_indent="  ", break_long_words=False,
                break_on_hyphens=False,
            )
        )  # fmt: skip
    return "\n".join([*lines, ""])


def _section(value: object) -> str:
    module = getattr(value, "__module__", "")
    return next((title for start, title in _SECTIONS.items() if module.startswith(start)), _RUNNING)


def _entry(name: PublicName) -> str:
    lines = [f"### `hf.{name.path}`\n"]
    value = name.value
    if inspect.isroutine(value) or (inspect.isclass(value) and _can_be_made(value)):
        lines.append(f"```\n{_signature(name.path.rpartition('.')[2], value)}\n```\n")
    lines.append(f"{_wrapped(name.first)}\n")
    if inspect.isclass(value) and not issubclass(value, Exception):
        listed = [_item(f"`.{shown}`", doc) for shown, doc in _fields(value)]
        listed += [_member(value, member, inner) for member, inner in members(value)]
        lines += [*listed, ""] if listed else []
    return "\n".join(lines)


def _can_be_made(kind: type) -> bool:
    """Whether a user makes objects of this class: not of those that methods return, nor of what is to be subclassed."""
    base = inspect.isabstract(kind) or getattr(kind, "_is_protocol", False)
    return kind not in _MADE_BY_METHODS and not base


def _member(kind: type, name: str, value: object) -> str:
    called = f"`.{name}`" if isinstance(value, property) else f"`.{_signature(name, value, types=False)}`"
    return _item(called, inspect.getdoc(getattr(kind, name)) or "")


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    """The fields of a class that something is said about, with their defaults."""
    [body] = [node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if hasattr(node, "body")]
    for field, after in itertools.pairwise(body):
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        name = ast.unparse(field.target) if isinstance(field, ast.AnnAssign) and said else ""
        if name and f"{kind.__name__}.{name}" not in _NOT_SHOWN:
            plain = field.value is not None and not isinstance(field.value, ast.Call)
            value = vars(inspect.getmodule(kind)).get(ast.unparse(field.value)) if plain else None
            default = f" = {ast.unparse(field.value) if value is None else value!r}" if plain else ""
            yield f"{name}{default}", inspect.cleandoc(after.value.value)


def _item(called: str, doc: str) -> str:
    return textwrap.fill(
        f"- {called}: {_first(doc)}", _WIDTH + 10, subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _errors(names: list[PublicName]) -> str:
    opening = (
        "`hf.errors` has it, too (`hf.errors.HoldfastError`), with all its kinds. Indented are kinds of the one above."
    )
    lines = [f"{_wrapped(opening)}\n"]

    def below(kind: type, depth: int) -> None:
        for name in names:
            if isinstance(name.value, type) and name.value.__bases__[0] is kind:
                lines.append(
                    textwrap.fill(
                        f"{'  ' * depth}- `{name.path.partition('.')[2]}`: {name.first}", _WIDTH + 10,
                        subsequent_indent="  " * (depth + 1), break_long_words=False, break_on_hyphens=False,
                    )
                )  # fmt: skip
                below(name.value, depth + 1)

    below(holdfast.HoldfastError, 0)
    return "\n".join([*lines, ""])


def _signature(name: str, value: object, *, types: bool = True) -> str:
    """As a user writes the call; without the types on one line."""
    signature = inspect.signature(value)  # type: ignore[arg-type]
    texts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in texts):
            texts.append("*")
        stars = "*" * ((parameter.kind is parameter.VAR_POSITIONAL) + 2 * (parameter.kind is parameter.VAR_KEYWORD))
        typed = types and parameter.annotation is not parameter.empty
        text = stars + parameter.name + (f": {_type(parameter.annotation)}" if typed else "")
        if parameter.default is not parameter.empty:
            default = "..." if repr(parameter.default).startswith("<") else repr(parameter.default)
            text += f" = {default}" if typed else f"={default}"
        texts.append(text)
    returns = signature.return_annotation
    shown = types and not inspect.isclass(value) and returns is not inspect.Signature.empty
    after = f" -> {_type(returns)}" if shown else ""
    line = f"{name}({', '.join(texts)}){after}"
    if not types or len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){after}"


def _type(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _doc(module: ModuleType, name: str, value: object) -> str:
    """The docstring; of a constant or the name of a type, the string behind its assignment."""
    if isinstance(value, ModuleType) or inspect.isclass(value) or inspect.isroutine(value):
        return inspect.getdoc(value) or ""
    for home in (module, *_imported_from(module, name)):
        body = ast.parse(inspect.getsource(home)).body
        for statement, after in itertools.pairwise(body):
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return inspect.cleandoc(str(after.value.value))
    return ""


def _imported_from(module: ModuleType, name: str) -> Iterator[ModuleType]:
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.ImportFrom) and any(alias.name == name for alias in statement.names):
            home = importlib.import_module(statement.module or "")
            yield home
            yield from _imported_from(home, name)


def _first(doc: str) -> str:
    return " ".join(doc.partition("\n\n")[0].split())


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH + 10, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
