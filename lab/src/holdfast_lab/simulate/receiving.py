"""A world of clients, receivers and a reader: rows that are acknowledged are in the p-stream, once, and stay readable.

Clients send batches over a network that loses requests and answers, and send them again until they are acknowledged.
Some give their batches ids, some count, and some do neither: those send each batch once. A receiver holds the lease and
runs the appender; when it dies, another one is started, perhaps while the first only sleeps. A reader takes entries,
checkpoints and trims. Its account, and those of the clients, are what is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl
from sqlalchemy.exc import SQLAlchemyError

from holdfast.engine.lease import LeaseKeeper
from holdfast.errors import CorruptPUnitError, HoldfastError, StreamGapError, TakenBeforeError
from holdfast.meta import Count
from holdfast.pstream import StreamDescription, StreamEntry
from holdfast.pstream.appender import Ack, Appender, open_appender
from holdfast.pstream.pstream import PStream
from holdfast.pstream.units import read_unit
from holdfast_lab.simulate.scheduler import Process
from holdfast_lab.simulate.simulated_threads import await_answer
from holdfast_lab.simulate.world import Program, World

__all__ = ["ReceivingWorld"]

_STREAM = "p.rows"
_SCHEMA = pl.Schema({"client": pl.Int64, "number": pl.Int64, "ts": pl.Int64})
_LATENESS = 3
_LEASE_SECONDS = 3.0
_PATIENCE = 1.5
_BATCHES = 6
_STEPS_TO_START = 60
_STEPS_OF_BATCHES = 40

Row = tuple[int, int, int]
Taken = tuple[Row, int | None, int]


@dataclass(slots=True)
class Client:
    """Its account: the rows of each batch, and where it was told that they are."""

    number: int
    kind: str
    batches: dict[int, list[Row]] = field(default_factory=dict)
    acked: dict[int, Ack] = field(default_factory=dict)
    done: bool = False


@dataclass(slots=True)
class Reader:
    """Its account: by the last entry that it has taken, all rows, each with the watermark before its p-unit and the
    number of its entry. Which of them its checkpoint is, the marker in the store says."""

    idle: int = 0
    """How often it has found nothing new since it last did."""
    taken: dict[int, list[Taken]] = field(default_factory=lambda: {0: []})
    checkpoints: int = 0

    @property
    def rows(self) -> list[Taken]:
        return self.taken[max(self.taken)]


class ReceivingWorld(World):
    calm = 9.0

    def begin(self) -> None:
        draw = self.draw
        self.clients = [Client(number, draw.choice(("ids", "ids", "counts", "neither"))) for number in range(3)]
        self.reader = Reader()
        self.receivers: list[tuple[Process, Appender]] = []
        """Those that listen, the last one to begin at the end: to that one clients connect."""
        self.store = self.root / "store"
        self._receiving: Process | None = None
        self._reading: Process | None = None
        self.budget = draw.choice((None, None, 6_000))
        self.restless = draw.choice((0.0, 0.0, 0.4))
        """How many receivers something befalls while they start."""
        self._start_receiver()
        self._start_reader()
        for client in self.clients:
            self.start(f"client{client.number}", f"client{client.number}", partial(self._send, client))
        self.lossy_network()
        for _ in range(draw.randrange(4)):
            draw.choice(
                (self._kill_receiver, self._kill_receiver, self._pause_receiver, self._kill_reader, self._lose_power,
                 self._lose_power, self.store_goes_away, self.network_is_slow, self.disk_is_full, self.disk_is_slow,
             partial(self.clock_is_set, "box"))
            )()  # fmt: skip

    def is_over(self) -> bool:
        return all(client.done for client in self.clients) and self.reader.idle > 3

    # receivers

    def _start_receiver(self) -> None:
        self._receiving = self.start("receiver", "box", self._receive).process
        if self.scheduler.time < self.calm and self.draw.random() < self.restless:
            act = self.draw.choice((self._kill_and_replace, self._stop_and_replace))
            self.befall(self._receiving, _STEPS_TO_START, act)

    def _start_receiver_soon(self) -> None:
        self.scheduler.after(self.draw.uniform(0.05, 1.0), self._start_receiver)

    def _receive(self, program: Program) -> None:
        """What the ingress does for one stream."""
        threads, mine = program.threads, program.process
        owner = f"{mine.name}:{mine.number}:0.0"
        while mine is self._receiving:
            try:
                meta = program.meta
                keeper = LeaseKeeper(
                    meta, f"ingress:{_STREAM}", threads.now, _LEASE_SECONDS, owner=owner, threads=threads
                )
                with keeper:
                    appender = open_appender(
                        meta, self.store, _STREAM, _SCHEMA, event_time="ts", lateness=_LATENESS, budget=self.budget,
                        lease=keeper.lease, clock=threads.now, threads=threads,
                    )  # fmt: skip
                    self.receivers.append((mine, appender))
                    while True:
                        keeper.renew()
                        threads.sleep(0.25)
            except (HoldfastError, SQLAlchemyError, OSError) as error:
                self.scheduler.tell(f"receiver: {type(error).__name__}: {error}")
                self.receivers = [known for known in self.receivers if known[0] is not mine]
                threads.sleep(0.3)

    # clients

    def _send(self, client: Client, program: Program) -> None:
        draw, threads = self.draw, program.threads
        at = 0
        for number in range(_BATCHES):
            threads.sleep(draw.uniform(0.0, 1.2))
            rows = [(client.number, number * 10 + row, draw.randrange(60)) for row in range(draw.randrange(1, 4))]
            client.batches[number] = rows
            while True:
                count = Count(f"client{client.number}", at, at + len(rows)) if client.kind == "counts" else None
                batch = f"{client.number}/{number}" if client.kind == "ids" else None
                answer = self._ask(rows, batch, count)
                await_answer(self.scheduler, answer, _PATIENCE)
                if answer.done() and answer.exception() is None:
                    client.acked[number] = answer.result()
                    break
                if answer.done() and isinstance(answer.exception(), TakenBeforeError) and client.kind == "counts":
                    stands = self._request(lambda appender: appender.position(f"client{client.number}"))
                    await_answer(self.scheduler, stands, _PATIENCE)
                    if stands.done() and stands.exception() is None and stands.result() >= at + len(rows):
                        break  # what came first was taken, and its answer was lost
                if client.kind == "neither":
                    break
                threads.sleep(draw.uniform(0.05, 0.4))
            at += len(rows)
        client.done = True
        self.reader.idle = 0  # what it was told last may not be read yet

    def _ask(self, rows: list[Row], batch: str | None, count: Count | None) -> Future[Ack]:
        """Send a batch to who receives."""
        frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
        return self._request(lambda appender: appender.submit(frame, batch, count))

    def _request(self, ask: Callable[[Appender], Any]) -> Future[Any]:
        """Ask who receives, by a network that loses both ways. What it gives may be an answer that comes later."""
        answer: Future[Any] = Future()
        scheduler, draw = self.scheduler, self.draw
        losses = 0.05 if scheduler.time < self.calm else 0.0

        def pass_back(taken: Future[Any]) -> None:
            if draw.random() >= losses and not scheduler.closed:
                scheduler.after(draw.uniform(0.001, 0.05), lambda: _copy(taken, answer))

        def arrive() -> None:
            listening = [known for known in self.receivers if known[0].alive]
            if not listening or draw.random() < losses:
                return
            process, appender = listening[-1]

            def handle() -> None:
                answered: Future[Any] = Future()
                try:
                    given = ask(appender)
                    if isinstance(given, Future):
                        given.add_done_callback(pass_back)
                        return
                    answered.set_result(given)
                except (HoldfastError, SQLAlchemyError, OSError) as error:
                    answered.set_exception(error)
                pass_back(answered)

            scheduler.spawn(process, handle, "request")

        scheduler.after(draw.uniform(0.001, 0.05), arrive)
        return answer

    # the reader

    def _start_reader(self) -> None:
        if self._reading is None or not self._reading.alive:
            self._reading = self.start("reader", "box", self._read).process

    def _read(self, program: Program) -> None:
        threads, account = program.threads, self.reader
        log: PStream | None = None
        number, rows = 0, account.taken[0]
        while True:
            threads.sleep(0.3)
            try:
                if log is None:
                    log = PStream(program.meta, self.store, _STREAM, clock=threads.now)
                    log.declare(StreamDescription({name: str(dtype) for name, dtype in _SCHEMA.items()}))
                    number = log.subscribe("reader").number
                    if number not in account.taken:
                        self.violate(f"the reader is to begin after entry {number}, which it has not released")
                    rows = account.taken[number]
                entries = log.read(number, 5)
                account.idle = 0 if entries else account.idle + 1
                for entry in entries:
                    if entry.number != number + 1:
                        self.violate(f"the reader wants entry {number + 1} and finds {entry.number}")
                    rows = rows + self._rows(log, entry, len(rows))
                    number = entry.number
                if entries:
                    account.taken[number] = rows
                    self._checkpoint(program, log, entries[-1])
                    log.trim()
            except (CorruptPUnitError, StreamGapError) as error:
                self.violate(f"a row that the reader has not released is gone: {error}")
            except (HoldfastError, SQLAlchemyError, OSError) as error:
                self.scheduler.tell(f"reader: {type(error).__name__}: {error}")
                log = None

    def _rows(self, log: PStream, entry: StreamEntry, offset: int) -> list[Taken]:
        if entry.offset != offset:
            self.violate(f"entry {entry.number} begins at {entry.offset}, after {offset} rows")
        units = ((unit.before, read_unit(log.store, unit, _SCHEMA.names())) for unit in entry.units)
        return [(row, before, entry.number) for before, frame in units for row in frame.rows()]

    def _checkpoint(self, program: Program, log: PStream, last: StreamEntry) -> None:
        self.reader.checkpoints += 1
        with program.meta.writing() as connection:
            log.checkpoint(connection, "reader", last.number, last.offset + last.rows, self.reader.checkpoints)

    # faults

    def _kill_receiver(self) -> None:
        self._strike("the receiver is killed", self._kill_and_replace)

    def _pause_receiver(self) -> None:
        self._strike("the receiver sleeps", self._stop_and_replace)

    def _strike(self, what: str, act: Callable[[Process], None]) -> None:
        def strike() -> None:
            if self._receiving is not None:
                self.befall(self._receiving, self.draw.choice((0, _STEPS_OF_BATCHES)), act)

        self.fault(self.moment(), what, strike)

    def _kill_and_replace(self, receiver: Process) -> None:
        self.scheduler.kill(receiver)
        self._start_receiver_soon()

    def _stop_and_replace(self, receiver: Process) -> None:
        """It sleeps, perhaps longer than its lease lasts; another one is started meanwhile."""
        self.pause(receiver, self.draw.uniform(0.5, 8.0))
        self._start_receiver_soon()

    def _kill_reader(self) -> None:
        def act() -> None:
            if self._reading is not None:
                self.scheduler.kill(self._reading)
            self.scheduler.after(self.draw.uniform(0.1, 1.0), self._start_reader)

        self.fault(self.moment(), "the reader is killed", act)

    def _lose_power(self) -> None:
        def act() -> None:
            for process in self.processes_of("box"):
                self.scheduler.kill(process)
            self.disk.lose_power()
            self._start_receiver_soon()
            self.scheduler.after(self.draw.uniform(0.2, 1.0), self._start_reader)

        self.fault(self.moment(), "power loss", act)

    # judgement

    def check(self) -> None:
        found: dict[tuple[int, int], list[int]] = {}
        for place, ((client, number, _), _, _) in enumerate(self.reader.rows):
            found.setdefault((client, number), []).append(place)
        for sender in self.clients:
            if not sender.done:
                raise self.violated(f"client {sender.number} was not served to its end")
            for number, rows in sender.batches.items():
                self._check_batch(sender, number, rows, found)
        self._check_marks()

    def _check_batch(
        self, client: Client, number: int, rows: list[Row], found: dict[tuple[int, int], list[int]]
    ) -> None:
        name = f"batch {number} of client {client.number} ({client.kind})"
        ack = client.acked.get(number)
        places = [found.get((row[0], row[1]), []) for row in rows]
        if any(len(found_at) > 1 for found_at in places):
            raise self.violated(f"{name} is in the stream more than once")
        there = [bool(found_at) for found_at in places]
        if any(there) != all(there):
            raise self.violated(f"{name} is in the stream in part")
        if not all(there):
            if ack is not None or client.kind != "neither":
                raise self.violated(f"{name} was acknowledged and is not in the stream")
            return
        at = [found_at[0] for found_at in places]
        if at != list(range(at[0], at[0] + len(at))) or [self.reader.rows[place][0] for place in at] != rows:
            raise self.violated(f"{name} is in the stream in another order")
        if ack is not None and (ack.offset, ack.rows) != (at[0], len(at)):
            raise self.violated(f"{name} was said to be at {ack.offset} and is at {at[0]}")

    def _check_marks(self) -> None:
        """The watermark before each p-unit is that of all entries before it."""
        greatest: int | None = None
        watermark: int | None = None
        last = 0
        for (_, _, ts), mark, number in self.reader.rows:
            if number != last:
                last, watermark = number, None if greatest is None else greatest - _LATENESS
            if mark != watermark:
                raise self.violated(f"entry {number} has the watermark {mark} before it, and not {watermark}")
            greatest = ts if greatest is None else max(greatest, ts)


def _copy(taken: Future[Any], answer: Future[Any]) -> None:
    error = taken.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(taken.result())
