"""What the store holds as JSON, read by programs that did not write it: the value, or an error that says what is wrong.

Records, plans and manifests name files that are opened and removed. So numbers are numbers, names stay below the
directory of the store, and whatever else stands there is one kind of error. The types say what is allowed; `JsonForm`
writes and reads them. A type whose JSON is not that of its fields is an `OwnForm`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from holdfast.errors import CorruptRecordError
from holdfast.versioned_message import check_version_in

__all__ = ["FileName", "JsonForm", "Natural", "OwnForm", "encode_json", "whole"]

T = TypeVar("T")
_WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError)

Natural = Annotated[int, msgspec.Meta(ge=0)]
FileName = Annotated[str, msgspec.Meta(pattern=r"(?s)\A(?!/)(?!(?:.*/)?\.\.(?:/|\Z))[^\0]+\Z")]
"""The name of a file below the store's directory."""


class OwnForm(ABC):
    """An immutable value, compared by its slots, with a form of its own in JSON: `stored` gives it, `of` takes it."""

    __slots__: tuple[str, ...] = ()

    @abstractmethod
    def stored(self) -> object:
        """The form that is stored."""

    @staticmethod
    @abstractmethod
    def of(stored: Any) -> Any:
        """The value of a stored form."""

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} does not change")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._values()!r}"

    def __reduce__(self) -> tuple[Callable[..., OwnForm], tuple[object, ...]]:
        return type(self), self._values()


def _stored(value: object) -> object:
    if isinstance(value, OwnForm):
        return value.stored()
    if isinstance(value, float | str):  # NumPy's own, for one
        return float(value) if isinstance(value, float) else str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


_encoder = msgspec.json.Encoder(enc_hook=_stored)


def _made(kind: type[Any], stored: object) -> object:
    assert issubclass(kind, OwnForm)
    return kind.of(stored)


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_stored)


def encode_json(value: object) -> str:
    """The text of a value, in ASCII: a database may have any encoding, and a file any name."""
    try:
        data = _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):  # a name that is no Unicode, or a very long number
        data = b"\xff"
    return data.decode() if data.isascii() else json.dumps(_plain(value))


class JsonForm(Generic[T]):
    """Values of one type as JSON text. `what` names them in errors. `version` is the one that is known, of values that
    carry theirs."""

    def __init__(self, kind: type[T], what: str, version: int | None = None) -> None:
        self._kind = kind
        self._what = what
        self._version = version
        self._decoder = msgspec.json.Decoder(kind, dec_hook=_made)

    def encode(self, value: T) -> str:
        return encode_json(value)

    def plain(self, value: T) -> Any:
        """The value as lists, dictionaries, texts and numbers."""
        return _plain(value)

    def decode(self, text: str | bytes) -> T:
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError as error:
            if self._version is not None:
                check_version_in(self._what, text, self._version)
            raise self._unreadable(error) from error
        except _WRONG:  # also what Python's own writer has let through: NaN, halves of surrogate pairs
            return self.of_plain(self._parsed(text))

    def of_plain(self, value: object) -> T:
        """The value of what `plain` gave, or of what that became in JSON."""
        try:
            return msgspec.convert(value, self._kind, str_keys=True, dec_hook=_made)
        except _WRONG as error:
            raise self._unreadable(error) from error

    def _parsed(self, text: str | bytes) -> object:
        try:
            return json.loads(text)
        except _WRONG as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self._what} in the store cannot be read: {type(error).__name__}: {str(error)[:200]}",
            cure="restore the store from a copy; nothing was changed",
        )


def whole(value: Any, least: int | None = 0, most: int | None = None) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r:.50} is not a whole number")
    if (least is not None and value < least) or (most is not None and value > most):
        raise ValueError(f"{value} is out of bounds")
    return value
