"""What can be set about a run is the same list everywhere, known to type checkers, and checked before the run."""

from __future__ import annotations

import inspect
import typing
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.engine.options import RunArguments, hosted, options_with
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.policies import DELTA
from holdfast.renamed import CALLBACKS

NAMES = [field.name for field in fields(hf.RunOptions) if field.name != "host"]


def parts(kind: Any) -> set[Any]:
    """The alternatives of a union."""
    return set(typing.get_args(kind)) if typing.get_origin(kind) in (typing.Union, type(int | str)) else {kind}


SECONDS = {"latency", "poll", "max_seconds", "interval", "detection"}
CONVERTED = {"store", "volatile", "backups", "fragments", "checkpoint"} | SECONDS
"""A path, a policy and several of a thing can be given in several ways, and are read in one."""


def test_the_named_arguments_are_the_fields_of_the_options() -> None:
    given, held = typing.get_type_hints(RunArguments), typing.get_type_hints(hf.RunOptions)
    assert list(given) == NAMES
    for name in given.keys() - CONVERTED:
        assert given[name] == held[name], name
    for name in ("store", "volatile", "checkpoint"):
        assert parts(held[name]) - parts(given[name]) <= {Path}


@pytest.mark.parametrize("function", [hf.run, hf.start, hf.RunOptions])
def test_all_that_takes_options_takes_them_by_the_same_names(function: Any) -> None:
    [named] = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD
    ]
    assert named.annotation == "Unpack[RunArguments]"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_explained(name: str) -> None:
    source = inspect.getsource(hf.RunOptions)
    after = source.split(f"    {name}: ", 1)[1].split("\n", 2)[1]
    assert after.strip().startswith('"""')


def test_options_are_read_in_one_form_however_they_were_given() -> None:
    options = hf.RunOptions(
        store="a", volatile="b", backups=["c"], fragments=["one"], checkpoint="delta", conf={"k": "v"}
    )
    assert (options.store, options.volatile, options.backups) == (Path("a"), Path("b"), (Path("c"),))
    assert (options.fragments, options.checkpoint, options.conf) == (("one",), DELTA, {"k": "v"})
    assert hf.RunOptions() == hf.RunOptions(checkpoint="auto", conf={})
    assert replace(options, latency=0.5).store == Path("a")
    with pytest.raises(FrozenInstanceError):
        options.latency = 2.0  # type: ignore[misc]


def test_what_is_given_by_name_wins_over_the_options() -> None:
    options = hf.RunOptions(store="a", latency=0.5)
    assert options_with(options, {"latency": 2}) == hf.RunOptions(store="a", latency=2)
    assert options_with(None, {"store": "a"}) == hf.RunOptions(store="a")
    assert options_with(options, {}) == options


def test_sources_are_polled_less_often_where_results_may_take_longer() -> None:
    found = [hf.RunOptions(latency=latency).poll_seconds for latency in ("10ms", "500ms", "1s", "2s", "1min")]
    assert found == [0.05, 0.05, 0.1, 0.2, 0.25]
    assert hf.RunOptions(latency="1min", poll="5ms").poll_seconds == 0.005


def test_secrets_are_not_printed() -> None:
    text = repr(hf.RunOptions(meta="postgresql://me:secret@host/db", conf={"spark.password": "secret"}))
    assert "secret" not in text


@pytest.mark.parametrize(
    ("given", "problem", "cure"),
    [
        ({"latncy": 1}, "no option 'latncy'", "did you mean 'latency'?"),
        ({"on_epoch": print}, "no option 'on_epoch'", "method 'epoch_committed'"),
        ({"partitions": 0}, "partitions=0 must be at least 1", "1 or more"),
        ({"latency": 0}, "latency=0 must be at least 1e-06", "1e-06 or more"),
        ({"latency": "soon"}, "latency='soon'", "a number with a unit"),
        ({"tasks": 1.5}, "tasks=1.5", "give a whole number"),
        ({"retain": None}, "retain=None", "a number with a unit"),
        ({"retain": 0}, "retain=0 must be at least 1", "1 or more"),
        ({"retain": True}, "retain=True", "give a whole number"),
        ({"retain": "long"}, "retain='long'", "a number with a unit"),
        ({"fragments": "one"}, "fragments='one'", "give a list: fragments=['one']"),
        ({"store": "s3://bucket"}, "is a URL", "mount it"),
        ({"checkpoint": "sometimes"}, "sometimes", "delta"),
    ],
)
def test_what_makes_no_sense_is_an_error_with_a_cure(given: dict[str, Any], problem: str, cure: str) -> None:
    with pytest.raises(DeclarationError) as error:
        hf.RunOptions(**given)
    assert problem in error.value.problem
    assert cure in error.value.cure
    with pytest.raises(DeclarationError):
        hf.run(hf.Pipeline("p"), **given)


def test_a_type_checker_knows_the_named_arguments() -> None:
    """`mypy --strict` reads this file, too: it would say so if one of these errors were none."""
    pipeline = hf.Pipeline("p")
    with pytest.raises(DeclarationError):
        hf.start(pipeline, latncy=1)  # type: ignore[call-arg]
    with pytest.raises(DeclarationError):
        hf.run(pipeline, most_rows="many")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError):
        hf.RunOptions(partitions="two")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"store": "x"}, "x"])
def test_options_that_are_none_are_refused_with_the_two_ways_to_give_them(given: Any) -> None:
    pipeline = hf.Pipeline("p")
    for function in (hf.run, hf.start):
        with pytest.raises(WrongTypeError, match=r"hf\.RunOptions\(store=\.\.\.\), or each by its name"):
            function(pipeline, given)


@pytest.mark.parametrize("old", CALLBACKS)
def test_a_callback_of_before_tells_the_observer_s_method(old: str) -> None:
    assert callable(getattr(hf.Observer, CALLBACKS[old]))
    given: Any = {old: print}
    with pytest.raises(DeclarationError, match=f"use observer=: .* method '{CALLBACKS[old]}'"):
        hf.run(hf.Pipeline("p"), **given)


def test_the_name_of_a_host_is_no_option_of_users() -> None:
    given: Any = {"host": "a"}
    with pytest.raises(DeclarationError, match="a run has no option 'host'") as error:
        hf.run(hf.Pipeline("p"), **given)
    assert "host" not in error.value.cure.replace("'host'", "")
    assert hosted(hf.RunOptions(store="a"), "b").host == "b"
    assert "host" not in repr(hf.RunOptions())


def test_epochs_are_retained_by_time_or_by_number() -> None:
    by_time = hf.RunOptions(retain="1 h").retention
    assert (by_time.epochs, by_time.seconds) == (16, 3600.0)
    assert hf.RunOptions(retain=timedelta(minutes=5)).retention.seconds == 300.0
    by_number = hf.RunOptions(retain=3).retention
    assert (by_number.epochs, by_number.seconds) == (3, 0.0)
