"""Errors go to the driver as typed messages: as they were raised, with what led to them, and nothing is run."""

from __future__ import annotations

import json
import pickle

import msgspec
import pytest

from holdfast import errors
from holdfast.client_batches import Count, TakenBatch
from holdfast.epoch.messages import error_message, packed, raise_errors, unpacked
from holdfast.epoch.sent_error import RemoteCauseError, SentError
from holdfast.errors import HoldfastError, InputError, OperatorError, PlacedError, TakenBeforeError
from holdfast.operators.operator_errors import named_errors

KINDS = sorted(
    (
        kind
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type) and issubclass(kind, HoldfastError)
    ),
    key=lambda kind: kind.__name__,
)


def sent(error: HoldfastError) -> HoldfastError:
    """The error as it comes out at the other side."""
    with pytest.raises(HoldfastError) as caught:
        raise_errors(unpacked(packed([error_message(error)])))
    return caught.value


def filled(kind: type[HoldfastError]) -> HoldfastError:
    """An error of that class, all of whose fields say something."""
    error = kind("it broke: \u00e4\udcff", cure="mend it", operator="w", epoch=7)
    if isinstance(error, InputError):
        error.of("data/\udcff.csv")
    if isinstance(error, PlacedError):
        error.place = "edges[3]"
    if isinstance(error, TakenBeforeError):
        error.batches, error.counts = {"a": TakenBatch(1, 2, 3)}, (Count("c", 4, 5),)
    return error


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_was_raised(kind: type[HoldfastError]) -> None:
    error = filled(kind)
    fields = dict(vars(error))
    assert all(value not in (None, {}, ()) for value in fields.values()), "each field of an error is tried"
    for arrived in (sent(error), pickle.loads(pickle.dumps(error))):
        assert type(arrived) is kind
        assert vars(arrived) == fields
        assert str(arrived) == str(error)


def test_an_exception_of_the_users_keeps_name_message_frames_and_cause() -> None:
    class OddPriceError(ValueError):
        pass

    def read_price() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise OddPriceError("a price of nothing") from error

    with pytest.raises(OperatorError) as caught, named_errors("prices", 4):
        read_price()
    arrived = sent(caught.value)
    assert str(arrived) == str(caught.value)
    cause = arrived.__cause__
    assert isinstance(cause, RemoteCauseError)
    assert cause.kind.endswith("OddPriceError")
    assert cause.text == "a price of nothing"
    assert "in read_price" in cause.traceback
    assert "in read_price" in str(cause)
    inner = cause.__cause__
    assert isinstance(inner, RemoteCauseError)
    assert inner.kind == "JSONDecodeError"


def test_an_error_without_a_cause_says_where_it_was_raised() -> None:
    def look_in_the_store() -> None:
        raise errors.CorruptPUnitError("a p-unit is missing", cure="restore it")

    with pytest.raises(HoldfastError) as caught:
        look_in_the_store()
    assert "in look_in_the_store" in str(sent(caught.value).__cause__)


def test_a_cause_whose_text_fails_and_a_long_chain_are_sent_all_the_same() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    error: BaseException = SilentError()
    for number in range(100):
        outer = OperatorError(f"{number}" + "x" * 100_000, cure="none")
        outer.__cause__ = error
        error = outer
    assert isinstance(error, HoldfastError)
    assert len(packed([error_message(error)])) < 1_000_000
    failed = OperatorError("it broke", cure="mend it")
    failed.__cause__ = SilentError()
    assert "cannot be obtained" in str(sent(failed).__cause__)


def test_an_error_of_a_class_that_is_not_known_is_an_error_all_the_same() -> None:
    known = msgspec.to_builtins(SentError.of(filled(OperatorError)))
    for name in ("ErrorOfTomorrow", "BaseException", "gist", "re", "__builtins__"):
        arrived = msgspec.convert({**known, "error": name}, SentError).rebuilt()
        assert type(arrived) is HoldfastError
        assert (arrived.cure, arrived.operator, arrived.epoch) == ("mend it", "w", 7)
