"""Errors that came of too little memory, as libraries tell them."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from holdfast.errors import CorruptFileError
from holdfast.task.lacking_memory import lacked_memory


def caused_by(cause: BaseException) -> CorruptFileError:
    try:
        raise CorruptFileError("cannot map it", cure="give it a file") from cause
    except CorruptFileError as error:
        return error


@pytest.mark.parametrize(
    "cause",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 8 failed"),
        OSError(errno.ENOMEM, "Memory mapping file failed"),
        RuntimeError("mmap failed: Cannot allocate memory (os error 12)"),
    ],
)
def test_a_process_that_lacked_memory_may_be_the_only_one(cause: BaseException) -> None:
    assert lacked_memory(cause)
    assert lacked_memory(caused_by(cause))


@pytest.mark.parametrize("cause", [OSError(errno.ENOENT, "no such file"), ValueError("no number")])
def test_other_errors_are_those_of_the_input(cause: BaseException) -> None:
    assert not lacked_memory(caused_by(cause))
