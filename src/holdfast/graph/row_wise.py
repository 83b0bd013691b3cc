"""Row-wise expressions: those whose value for a row depends on that row alone.

Rows come in batches of any size, so an expression that looks at other rows would depend on how they are cut. Polars
knows of each part of an expression whether it may be computed in batches (`is_row_separable`), but speaks for the
outermost part only, and not for parts that it can make sense of only among other columns. So an expression is brought
into a form that Polars can judge, and every part of it is looked at.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from holdfast.errors import DeclarationError

__all__ = ["check_row_by_row"]

_SOME_COLUMN = {"Column": "a"}
_SOME_LITERAL = {"Literal": {"Dyn": {"Int": 1}}}
_LOOKUPS = ("IsIn", "Replace", "ReplaceStrict", "ContainsAny", "ReplaceMany", "ExtractMany", "FindMany", "Business")
"""Functions that look rows up in a list of values, which may be given as a Series."""


_CODES = ("ToPhysical", "Physical")
"""Functions that give the number by which a category is known."""

_IN_A_WINDOW = "compute it in a window: .window(hf.window.tumbling('1 min')).agg(...), or in a keyed process"
_GIVE_FORMAT = "give a format, or it is guessed from other rows: .str.to_datetime('%Y-%m-%d %H:%M:%S')"
_PARSES = re.compile(r"\.str\.strptime\([^()]*\)$")


def check_row_by_row(
    exprs: Iterable[pl.Expr],
    operator: str | None = None,
    *,
    schema: pl.Schema | None = None,
    reduced: bool = False,
) -> None:
    """Refuse expressions that look at other rows, as far as Polars can tell; of Python functions it cannot. Unless they
    are to be `reduced` to a value per group, they must give a value for each row, too. With the `schema` of the rows
    more is known of the types within an expression."""
    for expr in exprs:
        if any(_is_categorical(inside, schema) for inside in _numbered(expr)):
            raise DeclarationError(
                f"{_short(expr)} uses the codes of a Categorical, which differ from process to process",
                cure="cast to pl.Enum([...]), whose codes are fixed, or keep the text: .cast(pl.String)",
                operator=operator,
            )
        for root in _readable(expr):
            culprit = next((part for part in reversed(list(_parts(root))) if not _separable(part)), None)
            own = culprit is not None and culprit.meta.is_literal()  # a Series
            if culprit is not None and not own:
                within = "" if culprit.meta.eq(expr) else f", in {_short(expr)},"
                raise DeclarationError(
                    f"{_short(culprit)}{within} looks at other rows of its batch, and batches have any size",
                    cure=_GIVE_FORMAT if _PARSES.search(str(culprit)) else _IN_A_WINDOW,
                    operator=operator,
                )
            if own or (not reduced and _changes_number(root)):
                raise DeclarationError(
                    f"{_short(expr)} changes the number of rows",
                    cure="use the stream's own .filter(...) or .explode(...)",
                    operator=operator,
                )


def _numbered(expr: pl.Expr) -> list[Any]:
    """What is given to the functions within the expression that make numbers of categories."""
    try:
        pending: list[Any] = [json.loads(expr.meta.serialize(format="json"))]
    except PolarsError:
        return []  # with a Python function in it
    found = []
    while pending:
        tree = pending.pop()
        if isinstance(tree, list):
            pending += tree
        elif isinstance(tree, dict):
            pending += tree.values()
            function = tree.get("Function")
            if isinstance(function, dict) and any(name in _CODES for name in _names(function["function"])):
                found += function["input"][:1]
    return found


def _is_categorical(tree: Any, schema: pl.Schema | None) -> bool:
    if isinstance(tree, dict) and "Cast" in tree:
        return "Categorical" in json.dumps(tree["Cast"]["dtype"])[:40]
    try:
        expr = pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")
        types = pl.LazyFrame(schema=schema or {}).select(expr).collect_schema()
    except PolarsError:
        return False  # e.g. an element of a list, or the columns are not known
    return any(isinstance(dtype, pl.Categorical) for dtype in types.values())


def _separable(part: pl.Expr) -> bool:
    try:
        return part.meta.is_row_separable()
    except PolarsError:
        return True  # Python functions, and what depends on types alone


def _changes_number(expr: pl.Expr) -> bool:
    try:
        return not expr.meta.is_length_preserving() and not expr.meta.is_scalar()
    except PolarsError:
        return False


def _parts(expr: pl.Expr) -> Iterator[pl.Expr]:
    pending = [expr]
    while pending:
        part = pending.pop()
        yield part
        pending += part.meta.pop()


def _readable(expr: pl.Expr) -> list[pl.Expr]:
    """Expressions that Polars can judge without columns, row-wise if and only if the given one is."""
    roots: list[Any] = []
    try:
        roots.append(_rewritten(json.loads(expr.meta.serialize(format="json")), roots))
        return [pl.Expr.deserialize(io.StringIO(json.dumps(root)), format="json") for root in roots]
    except PolarsError:
        return [expr]  # with a Python function in it


def _rewritten(tree: Any, roots: list[Any]) -> Any:
    """The tree with any column for selectors and fields, and without what is computed of the elements of each row's
    list. What is computed of a struct's fields is added to `roots`."""
    if isinstance(tree, list):
        return [_rewritten(item, roots) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        [(kind, inside)] = tree.items()
        if kind in ("Selector", "Field"):
            return _SOME_COLUMN
        if kind == "Literal":
            return tree
        if kind == "Eval":
            return _rewritten(inside["expr"], roots)
        if kind == "StructEval":
            roots += [_rewritten(part, roots) for part in inside["evaluation"]]
            return _rewritten(inside["expr"], roots)
        if kind == "Function" and any(name in _LOOKUPS for name in _names(inside["function"])):
            first, *others = inside["input"]
            others = [_SOME_LITERAL if "Series" in json.dumps(other)[:40] else other for other in others]
            tree = {"Function": {**inside, "input": [first, *others]}}
    return {key: value if key == "dtype" else _rewritten(value, roots) for key, value in tree.items()}


def _names(function: Any) -> Iterator[str]:
    """A function's name, with those of the kinds it belongs to."""
    if isinstance(function, str):
        yield function
    elif isinstance(function, dict):
        for name, inside in function.items():
            yield name
            yield from _names(inside)


def _short(expr: pl.Expr) -> str:
    text = str(expr)
    return text if len(text) <= 80 else f"{text[:77]}..."
