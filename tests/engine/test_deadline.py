"""How long a run waits, without Spark: deadlines that follow from what was measured, calls that never come back."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connect.base import DriverSink
from holdfast.connect.sources.memory import MemorySource
from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.epoch_input import take_input
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.lease import LeaseKeeper
from holdfast.engine.options import RunOptions
from holdfast.epoch.deadline import EPOCH, Deadlines
from holdfast.errors import DeadlineError, DeclarationError, OperatorError
from holdfast.meta import MetaStore
from holdfast.plan.program import compile_program
from holdfast.spark.stall import Silence


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.floats(0.001, 1000), max_size=40))
def test_a_deadline_follows_from_what_is_usual(taken: list[float]) -> None:
    deadlines = Deadlines()
    for seconds in taken:
        deadlines.took(seconds)
    recent = taken[-20:]
    if not recent:
        assert deadlines.allowed(EPOCH) == 120
    else:
        assert deadlines.allowed(EPOCH) >= 30
        assert all(deadlines.allowed(EPOCH) >= 10 * seconds for seconds in recent)
        assert deadlines.allowed(EPOCH) <= max(30, 10 * max(recent))


def test_what_was_set_holds_for_everything() -> None:
    deadlines = Deadlines(7.0)
    deadlines.took(100.0)
    assert deadlines.allowed(EPOCH) == deadlines.allowed("a sink", "out") == 7.0
    assert RunOptions(deadline="1 min").deadline_seconds == 60
    with pytest.raises(DeclarationError, match="too short"):
        RunOptions(deadline="1s")


def test_only_silence_counts_unless_there_is_no_end() -> None:
    silence = Silence(0.0, 0.0)
    assert all(silence.problem((("sign-0-0", second),), second, 10.0) is None for second in range(1, 200, 9))
    assert silence.problem((("sign-0-0", 199),), 205.0, 10.0) == "no end after 205 s of work"
    quiet = Silence(0.0, 0.0)
    assert quiet.problem((), 10.0, 10.0) is None
    assert quiet.problem((), 10.5, 10.0) == "no progress for 10.5 s"


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What is waited for in vain, until the test has ended."""
    event = threading.Event()
    yield event
    event.set()


def test_a_source_that_does_not_answer_is_named(never: threading.Event) -> None:
    class Silent(hf.source.Source):
        schema = pl.Schema({"a": pl.Int64})

        def start(self) -> dict[str, int]:
            return {}

        def take(self, position: object, rows: int, pieces: int) -> hf.source.Take:
            never.wait()
            raise AssertionError

        def read(self, piece: object) -> Iterator[hf.source.Chunk]:
            raise AssertionError

    pipeline = hf.Pipeline("silent")
    pipeline.source("events", Silent()).sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    with pytest.raises(
        DeadlineError, match=r"operator 'events', epoch 4: the source, .* \(take, .*\), has not returned"
    ):
        take_input(program, {"events": {}}, {"events": False}, 10, 1, 4, Deadlines(0.05))


_NEVER = threading.Event()


class Hung(MemorySource):
    """Does not come back from one of the questions that are asked beside `take`."""

    question: str

    def settled(self, position: hf.source.Position) -> bool:
        return self._hang("settled") or super().settled(position)

    def awaits(self, position: hf.source.Position) -> bool:
        return self._hang("awaits") or super().awaits(position)

    def notices(self, position: hf.source.Position) -> tuple[str, ...]:
        return ("",) if self._hang("notices") else super().notices(position)

    def lag(self, position: hf.source.Position) -> int | None:
        return 0 if self._hang("lag") else super().lag(position)

    def _hang(self, question: str) -> bool:
        return question == self.question and _NEVER.wait(20)


@pytest.mark.parametrize("question", ["settled", "awaits", "notices", "lag"])
def test_a_source_that_does_not_answer_a_question_beside_is_named(
    tmp_path: Path, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Hung([pl.DataFrame({"a": [1]})], epochs=True)
    source.question = question
    pipeline = hf.Pipeline("hung")
    pipeline.source("events", source).sink("out", hf.sink.collect())
    monkeypatch.setattr(RunOptions, "deadline_seconds", 1.0)
    options = RunOptions(store=tmp_path, durable=False, until_idle=True)
    with pytest.raises(DeadlineError, match=r"operator 'events'.*: the source, .* has not returned"):
        FragmentRun(pipeline, InProcessPlatform(), options).run()


class Sink(DriverSink):
    """Remembers who called it, and hangs or fails as told."""

    def __init__(self, never: threading.Event | None = None, error: BaseException | None = None) -> None:
        self.never, self.error, self.threads = never, error, set[int]()

    def bind(self, schema: pl.Schema) -> None:
        self.threads.add(threading.get_ident())

    def check(self, committed: int) -> None:
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error

    def after_commit(self, epoch: int, rows: pl.DataFrame) -> None:
        self.threads.add(threading.get_ident())
        if self.error is not None:
            raise self.error
        if self.never is not None:
            self.never.wait()


def delivery_to(
    sink: Sink, deadlines: Deadlines, store: Path
) -> tuple[SinkDelivery, list[tuple[object, pl.DataFrame]]]:
    pipeline = hf.Pipeline("sinks")
    pipeline.source("events", hf.source.memory(pl.DataFrame({"a": [1]}))).sink("table", sink)
    program = compile_program(pipeline)
    [node] = program.sinks
    return SinkDelivery(program, MetaStore(store), time.monotonic, deadlines), [(node, pl.DataFrame({"a": [1]}))]


def test_a_sink_that_does_not_answer_is_named(never: threading.Event, tmp_path: Path) -> None:
    delivery, delivered = delivery_to(Sink(never), Deadlines(0.05), tmp_path)
    with pytest.raises(DeadlineError, match=r"operator 'table', epoch 9: the sink, .* has not returned") as caught:
        delivery.after_commit(9, delivered)  # type: ignore[arg-type]
    assert "deadline" in caught.value.cure


def test_a_sink_is_always_called_by_the_same_thread(tmp_path: Path) -> None:
    sink = Sink()
    delivery, delivered = delivery_to(sink, Deadlines(), tmp_path)
    delivery.check()
    delivery.after_commit(4, delivered)  # type: ignore[arg-type]
    assert len(sink.threads) == 1


def test_a_panic_in_a_sink_is_an_error_of_the_sink(tmp_path: Path) -> None:
    delivery, delivered = delivery_to(
        Sink(error=pl.exceptions.PanicException("index out of bounds")), Deadlines(), tmp_path
    )
    with pytest.raises(OperatorError, match="operator 'table', epoch 4: the sink raised PanicException: index out"):
        delivery.after_commit(4, delivered)  # type: ignore[arg-type]


def test_a_run_that_is_stuck_does_not_keep_its_lease(tmp_path: Path) -> None:
    clock = Clock()
    deadlines = Deadlines(10.0, clock)
    meta = MetaStore(tmp_path)
    assert deadlines.stuck() is None  # it has not begun
    deadlines.step()
    clock.now = 15.0
    assert deadlines.stuck() is None
    clock.now = 15.5
    assert deadlines.stuck() is not None
    assert deadlines.call("out", 1, "the sink", lambda: 7) == 7
    assert deadlines.stuck() is None, "what is slow and goes on is not stuck"
    clock.now = 31.0
    keeper = LeaseKeeper(meta, "p", lambda: 1.0, seconds=0.05, stuck=deadlines.stuck)
    with keeper:
        keeper._thread.join(60)
        with pytest.raises(DeadlineError, match="'p' gave up its lease: the run has been stuck for 16 s"):
            keeper.renew()
    deadlines.rest()
    assert deadlines.stuck() is None
    meta.close()


def test_a_process_that_only_waits_gives_no_sign() -> None:
    """In a process of its own: other threads of this one may be at work."""
    script = """
import time
from holdfast.task.spark_task import at_work
signs = []
with at_work(lambda: signs.append(1), every=0.01):
    assert len(signs) == 1
    while len(signs) < 5:
        sum(range(1000))
    time.sleep(0.1)  # what was spent before is seen
    known = len(signs)
    time.sleep(1)
    assert len(signs) == known, (known, len(signs))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
