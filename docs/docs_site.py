"""Builds the site of these pages into `build/site`, without network and with warnings as errors. `make docs`.

Pages are copied to `build/docs` first. There links out of `docs/` lead to copies, so that the pages read the same on
the site and in the repository, and a comment such as `<!-- made: errors -->` gives way to what the code says.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import click

from holdfast import errors
from holdfast.cli import main

__all__ = ["error_pages", "fault_list", "made", "option_pages", "stage"]

ROOT = Path(__file__).parents[1]
PAGES, STAGED, SITE = ROOT / "docs", ROOT / "build/docs", ROOT / "build/site"
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the site that are not in `docs/`."""
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")


def stage() -> None:
    """Copy what the site is made of."""
    shutil.rmtree(STAGED, ignore_errors=True)
    for name in ("images", "scripts"):
        shutil.copytree(PAGES / name, STAGED / name)
    for page in [*PAGES.glob("*.md"), *(ROOT / name for name in FROM_ROOT)]:
        text = _LINK.sub(lambda match, page=page: _linked(match[1], page), page.read_text(encoding="utf-8"))
        (STAGED / FROM_ROOT.get(page.name, page.name)).write_text(made("\n".join(_spaced(text))), encoding="utf-8")


def made(text: str) -> str:
    """A page with what is made from the code."""
    parts = {"options": option_pages, "errors": error_pages}
    return re.sub(r"^<!-- made: (\w+) -->$", lambda match: "\n".join(parts[match[1]]()), text, flags=re.MULTILINE)


def _spaced(text: str) -> Iterator[str]:
    """Lists and tables as Python's Markdown wants them: behind an empty line, and nested by four spaces."""
    before, fenced = "", False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced:
            item = re.match(r"( *)(?:[-*]|\d+\.) ", line)
            begins = (item and not item[1]) or line.startswith("|")
            if begins and before and not re.match(r" |[-*] |\d+\. |\|", before):
                yield ""
            if line.startswith("|"):  # in code, a bar needs no backslash there
                line = re.sub(r"`[^`]*`", lambda match: match[0].replace("\\|", "|"), line)
            if item and item[1] and len(item[1]) < 8 and re.match(r" *(?:[-*]|\d+\.) |  ", before):
                line = item[1] + line
        yield line
        before = line
    yield ""


def _linked(link: str, page: Path) -> str:
    """A link as it is on the site; a file that is no page is copied for it."""
    if "://" in link:
        return link
    path = (page.parent / link).resolve()
    if path.parent == PAGES and path.suffix == ".md":
        return path.name
    name = path.relative_to(ROOT).as_posix()
    if name in FROM_ROOT:
        return FROM_ROOT[name]
    if path.is_relative_to(PAGES / "images"):
        return path.relative_to(PAGES).as_posix()
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    for file in files:
        copy = STAGED / "repository" / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy.with_name(f"{copy.name}.txt") if file.suffix == ".py" else copy)
    if path.is_dir():
        lines = [f"# {name}\n", *(f"- [{file.name}]({file.name}.txt)" for file in files)]
        (STAGED / "repository" / name / "index.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
        return f"repository/{name}/index.md"
    return f"repository/{name}.txt" if path.suffix == ".py" else f"repository/{name}"


def option_pages() -> Iterator[str]:
    """Every command with its arguments and options, as its `--help` has them."""
    yield from _options(main, "holdfast")


def _options(command: click.Command, called: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _options(inner, f"{called} {name}")
        return
    arguments = " ".join(each.make_metavar(click.Context(command)) for each in command.params if _is_argument(each))
    yield from (f"## {called}\n", f"`{' '.join([called, arguments]).strip()}`\n", _paragraphs(command.help or ""), "")
    rows = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    if rows:
        yield from ("| option | default | |", "|---|---|---|")
        for option in rows:
            names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
            shown = option.default if isinstance(option.default, str | int | float) else None
            default = "" if shown is None or isinstance(shown, bool) or shown == "" else f"`{shown}`"
            yield f"| {names} | {default} | {_cell(option.help or '')} |"
        yield ""


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def _paragraphs(text: str) -> str:
    """Help as Markdown; click keeps the lines of a paragraph that begins with a backspace."""
    parts = [part.strip("\n") for part in text.split("\n\n")]
    return "\n\n".join(
        "\n".join(f"    {line}" for line in part.splitlines()[1:])
        if part.startswith("\b")
        else _escaped(" ".join(part.split()))
        for part in parts
    )


def error_pages() -> Iterator[str]:
    """Every class of errors with what its errors say, and their cures."""
    found = fault_list()

    def below(kind: type[errors.HoldfastError], above: str) -> Iterator[str]:
        text = " ".join((kind.__doc__ or "").split())
        yield from (f"## {kind.__name__}\n", f"{_escaped(text)}{above}\n")
        if rows := found.get(kind.__name__):
            yield from ("| what it says | cure |", "|---|---|")
            yield from (f"| {_cell(problem)} | {_cell(cure)} |" for problem, cure in rows)
            yield ""
        for name in errors.__all__:
            inner = getattr(errors, name)
            if kind in inner.__bases__:
                yield from below(inner, f" A kind of `{kind.__name__}`.")

    yield from below(errors.HoldfastError, "")


@cache
def fault_list() -> dict[str, list[tuple[str, str]]]:
    """What stands in the code behind each class: problem and cure, `…` for what is filled in."""
    found: dict[str, dict[tuple[str, str], None]] = {}
    for path in sorted((ROOT / "src/holdfast").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in errors.__all__:
                cures = [keyword.value for keyword in call.keywords if keyword.arg == "cure"]
                texts = [_text(value) for value in (*call.args[:1], *cures)]
                if len(texts) == 2 and any(text.strip("… ") for text in texts):
                    found.setdefault(call.func.id, {})[texts[0], texts[1]] = None
    return {name: list(rows) for name, rows in found.items()}


def _text(value: ast.expr) -> str:
    """A text as far as it is known before it runs."""
    match value:
        case ast.Constant():
            return str(value.value)
        case ast.JoinedStr():
            return "".join(_text(part) for part in value.values)
        case ast.BinOp(op=ast.Add()):
            return _text(value.left) + _text(value.right)
        case ast.IfExp():
            return f"{_text(value.body)} / {_text(value.orelse)}"
        case _:
            return "…"


def _cell(text: str) -> str:
    return re.sub(r"`[^`]*`|\|", lambda match: "\\|" if match[0] == "|" else match[0], _escaped(" ".join(text.split())))


def _escaped(text: str) -> str:
    """Plain text as Markdown: what stands in backquotes stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]])", r"\\\1", part) for part in parts)


class _Html(HTMLParser):
    """What a page of the site leads to, what it loads, and the places in it that have a name."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := given.get(key))}
        if tag == "a" and (href := given.get("href")):
            self.links.append(href)
        for key in ("src", "href"):
            if tag in ("script", "img", "iframe", "link") and (value := given.get(key)):
                self.loaded.append(value)


def _faults() -> Iterator[str]:
    """Links that lead nowhere, and what a page would load from elsewhere."""
    pages = {}
    for path in SITE.rglob("*.html"):
        pages[path] = _Html()
        pages[path].feed(path.read_text(encoding="utf-8"))
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of the server's root
            continue
        name = path.relative_to(SITE)
        yield from (f"{name} loads {link}" for link in page.loaded if re.match(r"(https?:)?//", link))
        for link in (*page.links, *page.loaded):
            if re.match(r"\w+:|//", link):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / unquote(file)).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{name}: {link} is not there"
            elif anchor and target in pages and unquote(anchor) not in pages[target].names:
                yield f"{name}: {link} has no such heading"


if __name__ == "__main__":
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict"]
    built = subprocess.run(zensical, cwd=ROOT, check=False)
    wrong = [*_faults()] if built.returncode == 0 else ["zensical has found what is above"]
    sys.exit("\n".join(wrong) or 0)
