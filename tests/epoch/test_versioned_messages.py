"""Every message between processes says its version, and one of another version is refused as such."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.engine.epoch_input import obey
from holdfast.epoch import crew_messages, messages
from holdfast.epoch.crew_messages import WorkerBeat, decode_head, encode_head
from holdfast.epoch.messages import DataHead, Message, RowsHead, TimesHead
from holdfast.epoch.repair_messages import RepairOutcome, Replan, Skip, asked_repair
from holdfast.epoch.sent_error import SentError
from holdfast.epoch.task_commit import TaskCommit
from holdfast.errors import CorruptRecordError, EpochFailedError, UnknownVersionError
from holdfast.formats import MESSAGE_VERSION
from holdfast.ingress.receiver_messages import ReceiverWord, told
from holdfast.meta import Command
from holdfast.plan.drill_command import DrillAnswer, DrillCommand
from holdfast.plan.program import compile_program
from holdfast.plan.scale_command import ScaleAnswer, ScaleCommand
from holdfast.versioned_message import VersionedMessage

FAILED = SentError.of(EpochFailedError("it broke", cure="mend it", epoch=3))
BETWEEN_STAGES: list[VersionedMessage] = [
    DataHead(1, 0, (0, 1, 2, 3)),
    TimesHead(0, {"in": 5}),
    RowsHead("out", (0, 1, 2), 3),
    TaskCommit(host="h", stage=1, task=0),
    FAILED,
]
STORED: list[tuple[Any, Callable[[str], Any]]] = [
    (ScaleCommand("w", 3), ScaleCommand.decode),
    (ScaleAnswer(4), ScaleAnswer.decode),
    (DrillCommand("worker"), DrillCommand.found_in),
    (DrillAnswer(4), DrillAnswer.decode),
    (Replan((1, 2)), asked_repair),
    (Skip(3), asked_repair),
    (RepairOutcome(), RepairOutcome.decode),
]
STORED_IDS = [type(value).__name__ for value, _ in STORED]
FUTURE = MESSAGE_VERSION + 1


def of_tomorrow(data: bytes | str) -> bytes:
    """What a newer program would say in its place: another version, and fields and kinds that nobody knows here."""
    value = json.loads(data)
    kinds = {name: "something-new" for name in ("kind", "do") if name in value}
    return json.dumps({**value, **kinds, "version": FUTURE, "more": {"of": "it"}}).encode()


def through_arrow(head: bytes) -> Iterator[Message]:
    [batch] = messages.pack([Message(0, TimesHead(0, {}))])
    columns = [batch.column(0), pa.array([head], pa.binary()), batch.column(2)]
    return messages.unpack([pa.RecordBatch.from_arrays(columns, schema=batch.schema)])


@pytest.mark.parametrize("head", BETWEEN_STAGES, ids=lambda head: type(head).__name__)
def test_a_message_between_stages_says_its_version(head: Any) -> None:
    [batch] = messages.pack([Message(1, head)])
    said = json.loads(batch.column(1)[0].as_py())
    assert said["version"] == MESSAGE_VERSION
    assert messages.unpacked(messages.packed([Message(1, head)])) == [Message(1, head)]
    with pytest.raises(UnknownVersionError, match=f"version {FUTURE}; this program knows version {MESSAGE_VERSION}"):
        list(through_arrow(of_tomorrow(json.dumps(said))))
    with pytest.raises(UnknownVersionError, match=f"has version {FUTURE}"):
        list(through_arrow(json.dumps({**said, "version": FUTURE}).encode()))
    with pytest.raises(CorruptRecordError):
        list(through_arrow(json.dumps({**said, "kind": "something-new"}).encode()))


def test_every_message_of_a_crew_says_its_version() -> None:
    assert json.loads(encode_head(WorkerBeat(1.0)))["version"] == MESSAGE_VERSION
    with pytest.raises(UnknownVersionError, match="a message between workers has version"):
        decode_head(of_tomorrow(encode_head(WorkerBeat(1.0))))
    with pytest.raises(CorruptRecordError):
        decode_head(b'{"kind": "something-new", "version": 1}')


@pytest.mark.parametrize(("value", "read"), STORED, ids=STORED_IDS)
def test_commands_and_answers_say_their_version(value: Any, read: Callable[[str], Any]) -> None:
    text = value.encode()
    said = json.loads(text)
    assert said["version"] == MESSAGE_VERSION
    del said["version"]
    assert read(text) == value == read(json.dumps(said)), "those of before said none"
    if isinstance(value, DrillCommand):
        assert read(of_tomorrow(text).decode()) is None, "it is left to the plan, which refuses it"
        return
    with pytest.raises(UnknownVersionError, match=f"has version {FUTURE}"):
        read(of_tomorrow(text).decode())


def test_a_command_of_tomorrow_is_answered_and_not_obeyed() -> None:
    pipeline = hf.Pipeline("p")
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"v": [1]}))).sink("out", hf.sink.collect())
    command = Command(7, of_tomorrow(DrillCommand("worker").encode()).decode())
    answer = obey(compile_program(pipeline), [command], {}, 2, 5).answers[7]
    assert answer.epoch is None
    assert answer.problem is not None
    assert f"has version {FUTURE}" in answer.problem
    assert ScaleAnswer.decode(answer.encode()) == answer


def test_the_words_of_receivers_say_their_version() -> None:
    word = told(EpochFailedError("it broke", cure="mend it"))
    assert ReceiverWord.decode(word.encode()) == word
    with pytest.raises(UnknownVersionError):
        ReceiverWord.decode(of_tomorrow(word.encode()))


def test_no_message_lacks_its_version() -> None:
    """Whatever has a tag by which processes tell messages apart is one with a version."""
    kinds = set(VersionedMessage.__subclasses__())
    kinds |= {inner for kind in kinds for inner in kind.__subclasses__()}
    for module in (messages, crew_messages):
        named = [getattr(module, name) for name in module.__all__]
        structs = [kind for kind in named if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        assert structs
        assert set(structs) <= kinds
    assert len([kind for kind in kinds if kind.__module__ == crew_messages.__name__]) > 10
