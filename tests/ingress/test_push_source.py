"""Declaring a push source: everything that can be wrong is said at once, with a cure."""

from __future__ import annotations

import pickle
from typing import Any

import polars as pl
import pytest

from holdfast.connect.base import Slice
from holdfast.connect.sources.push import Address, PushSource, parse_size, push
from holdfast.errors import DeclarationError, WrongTypeError

SCHEMA = {"id": pl.Int64, "name": pl.String}


def test_declares_where_to_listen_and_how_much_to_take() -> None:
    source = push(SCHEMA, http="127.0.0.1:8080", tcp="[::1]:9009", max_body="1 MiB", budget="2 GB", token="t0ken")

    assert source.listeners() == {"http": Address("127.0.0.1", 8080), "tcp": Address("::1", 9009)}
    assert (source.max_body, source.budget) == (2**20, 2 * 10**9)
    assert source.schema == pl.Schema(SCHEMA)
    assert source.describe() == (
        "push over http 127.0.0.1:8080, tcp [::1]:9009, with a token, acknowledged when durable"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "no address to listen on"),
        ({"http": "8080"}, "http='8080' is not an address"),
        ({"http": "127.0.0.1:70000"}, "is not an address"),
        ({"flight": 8815}, "flight=8815 is not an address"),
        ({"http": "127.0.0.1:8080", "flight": "127.0.0.1:8080"}, "http and flight both listen"),
        ({"http": "0.0.0.0:8080"}, "for other machines, without a token"),
        (
            {"http": "127.0.0.1:0", "token": "env:HOLDFAST_NO_SUCH_VARIABLE"},
            "'HOLDFAST_NO_SUCH_VARIABLE' of the token is not",
        ),
        ({"http": "127.0.0.1:0", "token": "has space"}, "characters that no header can carry"),
        ({"http": "127.0.0.1:0", "max_body": "many"}, "max_body='many' is not a size"),
        ({"http": "127.0.0.1:0", "budget": 0}, "budget=0 is not a size"),
        ({"http": "127.0.0.1:0", "max_body": "2 GB", "budget": "1 GB"}, "is more than budget"),
        ({"http": "127.0.0.1:0", "bad_rows": "dead_letter"}, "bad_rows='dead_letter'"),
        ({"tcp": "127.0.0.1:0", "lines": "xml"}, "lines='xml'"),
        ({"tcp": "127.0.0.1:0", "lines": "text"}, "one String column"),
        ({"http": "127.0.0.1:0", "idle": 0}, "idle=0"),
    ],
)
def test_refuses_what_cannot_work(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        push(SCHEMA, **settings)
    assert said in raised.value.problem
    assert raised.value.cure


@pytest.mark.parametrize("schema", [{"x": pl.Object}, {"x": pl.Datetime("us"), "y": "no type"}, {}])
def test_refuses_schemas_that_arrow_cannot_hold(schema: dict[str, Any]) -> None:
    with pytest.raises(WrongTypeError):
        push(schema, http="127.0.0.1:0")


def test_refuses_columns_that_its_lines_cannot_hold() -> None:
    with pytest.raises(WrongTypeError, match="JSON cannot hold"):
        push({"x": pl.Duration("us")}, tcp="127.0.0.1:0")
    assert push({"x": pl.Duration("us")}, http="127.0.0.1:0")


def test_reads_the_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSH_TOKEN", "s3cret")

    source = push(SCHEMA, http="0.0.0.0:8080", token="env:PUSH_TOKEN")

    assert source.token == "s3cret"
    assert "s3cret" not in repr(source)


def test_is_not_read_itself() -> None:
    source = push(SCHEMA, http="127.0.0.1:0")

    with pytest.raises(DeclarationError, match="cannot be read directly"):
        source.take(source.start(), 1, 1)
    with pytest.raises(DeclarationError, match="cannot be read directly"):
        source.read(Slice(0, 0, {}))


def test_is_pickled_and_frozen() -> None:
    source = push(SCHEMA, http="127.0.0.1:0")

    copy = pickle.loads(pickle.dumps(source))

    assert isinstance(copy, PushSource)
    assert (copy.schema, copy.http) == (source.schema, source.http)
    with pytest.raises(AttributeError):
        source.budget = 1  # type: ignore[misc]


@pytest.mark.parametrize(("text", "size"), [("64 MB", 64 * 10**6), ("1.5 kB", 1500), ("2GiB", 2**31), (7, 7)])
def test_sizes_are_read_with_their_unit(text: str | int, size: int) -> None:
    assert parse_size("x", text) == size
