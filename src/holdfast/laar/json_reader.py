"""Typed values out of JSON: every value knows its place, so that an error can name it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from holdfast.errors import DescriptorError
from holdfast.json_text import parse_json

__all__ = ["JsonPlace", "parse"]

_MISSING = object()


def parse(text: str, what: str) -> JsonPlace:
    """The top of a JSON document, which must be an object."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise DescriptorError(f"{what} is not JSON: {error}", cure="correct the file at that line") from None
    top = JsonPlace("", value)
    if not isinstance(value, dict):
        raise top.wrong(f"{what} is {_kind(value)}", "make it a JSON object: {...}")
    return top


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """A JSON value and where it stands, e.g. `edges[3].selectivity`."""

    path: str
    value: Any

    def wrong(self, problem: str, cure: str) -> DescriptorError:
        return DescriptorError(problem, cure=cure, place=self.path or None)

    def has(self, field: str) -> bool:
        return field in self._object()

    def field(self, name: str, default: Any = _MISSING) -> JsonPlace:
        """A field of an object; without a default it must be there."""
        path = f"{self.path}.{name}" if self.path else name
        value = self._object().get(name, default)
        if value is _MISSING:
            raise DescriptorError("is missing", cure=f"add the field '{name}'", place=path)
        return JsonPlace(path, value)

    def items(self) -> list[JsonPlace]:
        if not isinstance(self.value, list):
            raise self.wrong(f"is {_kind(self.value)}", "make it a list: [...]")
        return [JsonPlace(f"{self.path}[{i}]", item) for i, item in enumerate(self.value)]

    def entries(self) -> Iterator[tuple[str, JsonPlace]]:
        """The fields of an object whose names are data."""
        for name, value in self._object().items():
            yield name, JsonPlace(f"{self.path}.{name}" if self.path else name, value)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"is {_kind(self.value)}", 'make it a string: "..."')
        return self.value

    def name(self) -> str:
        if not self.text():
            raise self.wrong("is an empty name", "give it a name of at least one character")
        return self.text()

    def whole(self, least: int) -> int:
        number = self.value
        if isinstance(number, bool) or not isinstance(number, int):
            raise self.wrong(f"is {_kind(number)}", f"make it a whole number, {least} or more")
        if number < least:
            raise self.wrong(f"is {number}", f"make it {least} or more")
        return number

    def number(self) -> Fraction:
        """The decimal as it was written, so that 0.1 is a tenth."""
        number = self.value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise self.wrong(f"is {_kind(number)}", "make it a number")
        if not math.isfinite(number):
            raise self.wrong(f"is {number}", "make it a finite number")
        return Fraction(number) if isinstance(number, int) else Fraction(repr(number))

    def share(self) -> Fraction:
        """A number from 0 to 1, or a text such as "2/3"."""
        if isinstance(self.value, str):
            try:
                number = Fraction(self.value)
            except (ValueError, ZeroDivisionError):
                raise self.wrong(f"is '{self.value}'", 'write a number from 0 to 1, or a fraction: "2/3"') from None
        else:
            number = self.number()
        if not 0 <= number <= 1:
            raise self.wrong(f"is {self.value}", "make it at least 0 and at most 1")
        return number

    def at_least_zero(self) -> Fraction:
        number = self.number()
        if number < 0:
            raise self.wrong(f"is negative: {self.value}", "make it 0 or more")
        return number

    def above_zero(self) -> Fraction:
        number = self.number()
        if number <= 0:
            raise self.wrong(f"is {self.value}", "make it greater than 0")
        return number

    def _object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong(f"is {_kind(self.value)}", "make it an object: {...}")
        return self.value


def _kind(value: Any) -> str:
    """A JSON value in words, for errors."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return f"the text '{value}'" if isinstance(value, str) else f"the number {value}"
