"""The driver: plans epochs, runs them on Spark, commits them, and keeps the house clean.

Decisions are made by `EpochProtocol` and `Pacer`; this module does what they say. Everything durable goes through
the meta store in the order: plan, run, prepare sinks, commit, publish.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from holdfast.epoch.authority import Authority, HeldAuthority
from holdfast.epoch.changes import take_changes
from holdfast.epoch.checkpoints import CheckpointReport
from holdfast.epoch.compacting import Compacting
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.delivery import Delivery
from holdfast.epoch.flights import JOB_ATTEMPTS, Flight, Flights
from holdfast.epoch.house import House
from holdfast.epoch.inventory import check_written
from holdfast.epoch.lease import LeaseKeeper
from holdfast.epoch.messages import Message
from holdfast.epoch.notices import Notices
from holdfast.epoch.options import RunOptions
from holdfast.epoch.pacing import Pacer, Trigger
from holdfast.epoch.planning import is_awaited, new_plan, nothing_taken, obey, take_input
from holdfast.epoch.protocol import Act, EpochProtocol
from holdfast.epoch.reach import check_reach, shared_places
from holdfast.epoch.record import EpochRecord, made_again, merge_commits
from holdfast.epoch.recovery import Recovery, RecoveryReport
from holdfast.epoch.repair import advise, repair
from holdfast.epoch.report import EpochReport, make_report
from holdfast.epoch.restart import Restart
from holdfast.epoch.session import slots
from holdfast.epoch.spark_input import run_on_batches
from holdfast.epoch.stall import StallWatch
from holdfast.epoch.streams import StreamLinks, bind_streams, lineage_of, vector_of
from holdfast.epoch.waiting import ExecutorWatch
from holdfast.epoch.warming import warm_up
from holdfast.epoch.work import WorkDirectory
from holdfast.errors import ClusterError, CommandGoneError, HoldfastError
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Commands, Lease, MetaStore
from holdfast.plan.program import Program, compile_program
from holdfast.pstream import Control
from holdfast.state.routing import Routing
from holdfast.store import Tier

__all__ = ["EpochReport", "PipelineRun", "RunOptions"]


_log = logging.getLogger(__name__)
_WORTH_OVERLAPPING = 0.1


class PipelineRun:
    """One run of a pipeline by this process, from taking the lease to letting it go."""

    _patience = 1.0
    """Seconds to wait for a job before looking at anything else."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        options: RunOptions,
        *,
        on_epoch: Callable[[EpochReport], None] | None = None,
        on_recovery: Callable[[RecoveryReport], None] | None = None,
        on_full: Callable[[str], None] | None = None,
        on_notice: Callable[[str], None] | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        upstream_ended: Callable[[], bool] = lambda: True,
        beside: int = 0,
        authority: Authority | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`upstream_ended` tells whether those who write what this run reads have ended: only then is a source without
        new rows idle. `beside` is how many other runs share the session. `authority` is by what right it plans and
        commits: by default a lease that it takes for itself."""
        self._spark = spark
        self._options = options
        self._on_epoch = on_epoch or (lambda report: None)
        self._on_recovery = on_recovery or (lambda report: None)
        self._upstream_ended = upstream_ended
        self._beside = beside
        self._clock = clock
        root = options.store.resolve()
        program = compile_program(pipeline)
        self._meta = MetaStore(options.meta or options.store, sync=options.durable)
        self.program: Program = bind_streams(program, self._meta, root, options.durable)
        self._deadlines = Deadlines(options.deadline_seconds)
        self._delivery = Delivery(self.program, self._meta, clock, self._deadlines)
        self._commands = Commands(self._meta)
        self._streams = StreamLinks(
            self.program, self._meta, root, options.durable, clock, on_full or (lambda text: None),
            replicated=options.host is not None,
        )  # fmt: skip
        self.home = root / pipeline.name
        self._tiers = options.tiers(pipeline.name, self._meta.identity())
        self._authority: Authority = authority or LeaseKeeper(self._meta, self.program.name, clock, stuck=self.stuck)
        self._right = HeldAuthority(self._meta, self._authority)
        self._work = WorkDirectory(self.home / "work" / (options.host or ""), uuid.uuid4().hex)
        self._executors = ExecutorWatch(spark)
        shared = check_reach(
            spark, shared_places(self.program, root, self._tiers, options.volatile), self._tiers.volatile
        )
        self._house = House(
            self.program, self._meta, options, self._tiers, self._work, self._right, clock,
            shared=shared, on_checkpoint=on_checkpoint or (lambda report: None),
        )  # fmt: skip
        self._notices = Notices(self.program, self._meta, on_notice or _log.warning, clock)
        self._pacer = Pacer(options.latency, options.least_rows, options.most_rows)
        self._trigger = Trigger(options.trigger_seconds, options.most_rows)
        stalls = StallWatch(spark, self._work, self.program, self._deadlines, waits_for_slots=authority is None)
        # Where another host can go on, it is to do so at once.
        tries = JOB_ATTEMPTS if authority is None else 1
        self._flights = Flights(spark, self._work, self._tiers, clock, self._deadlines, stalls, tries)
        self._planned: dict[int, Mapping[str, Any]] = {}
        self._planned_rows: dict[int, int] = {}
        self._lost: dict[int, EpochRecord] = {}
        self._routing: dict[str, Routing] = {}
        self._tasks = options.tasks
        self._told: dict[str, Any] = {}
        """What the tasks of an epoch are told beside its plan."""
        self._stop = False

    @property
    def compacting(self) -> Compacting:
        return self._house.compacting

    def stop(self) -> None:
        """Ask the run to end: epochs in flight are committed first."""
        self._stop = True

    def stuck(self) -> str | None:
        """Why the run does not go on, if so. To be asked by another thread."""
        return self._deadlines.stuck()

    def run(self) -> EpochRecord:
        """Run until the sources end or somebody stops it. Returns the last committed record."""
        self._live()
        return self._record

    def _live(self) -> None:
        try:
            with self._authority:
                try:
                    self._check_sinks()
                    warm_up(self._spark, self._work.root, self._options.tasks)
                    self._go()
                except Exception as error:
                    if isinstance(error, HoldfastError):
                        advise(error, self.program.name, self._planned, self._options)
                    with contextlib.suppress(Exception):  # what ends the run is told, and the next start publishes
                        self._publish_all()
                    raise
                finally:
                    self._deadlines.rest()
                    self._flights.end()
                    self._house.close()
                    self._work.remove_run()
        finally:
            self._meta.close()

    def _check_sinks(self) -> None:
        """Before Spark runs a job: what cannot be written to is told at once."""
        self._delivery.check()

    def _go(self) -> None:
        self._recover()
        self._began = self._clock()
        if self.program.spark_input is None:
            while self._step():
                pass
        else:
            self._notices.look(self._authority.lease, self._positions)
            run_on_batches(self, self.program.spark_input)
        self._finish()

    def _finish(self) -> None:
        self._deadlines.rest()
        self._publish_all()
        self._end()
        self._streams.committed(last=True)

    def _may_overlap(self) -> bool:
        """Assembly tasks of the second epoch wait in slots that those of the first may need: there must be room, also
        after executors were lost."""
        if not self._options.overlap or self.program.stages == 1:
            return False
        width = max(self._tasks, *(routing.partitions for routing in self._routing.values()))
        return slots(self._spark) >= 2 * width * (1 + self._beside)

    # start

    def _recover(self) -> None:
        """Go on from the last commit: run what was planned, publish what was committed, sweep what nobody knows."""
        self._recovery = Recovery(self._clock)
        self._recovery.enter("progress")
        lease = self._authority.lease
        take_changes(self.program, self._meta, lease, self._options.partitions, self._clock())
        repair(
            self.program, self._meta, lease, self._delivery, self._options.partitions, self._tasks, self._clock()
        )  # fmt: skip
        restart = Restart(self.program, self._meta, self._options)
        self._bring_back(restart)
        self._keep_house(restart, self._record, lease)
        self._work.remove_others(self._meta.right(lease))
        self._set_out(restart)

    def _bring_back(self, restart: Restart) -> None:
        """Have the state back from which to go on."""
        self._recovery.enter("upstream request")
        self._positions, self._done = restart.positions, restart.done
        self._recovery.enter("data")
        restart.load(self._recovery, self._tiers)
        self._record = self._begin = restart.record
        self._planned, self._lost, self._routing = restart.planned, restart.lost, restart.routing
        self._gathered = restart.gathered
        self._protocol = EpochProtocol(restart.began, restart.committed + restart.fresh, overlap=False)

    def _keep_house(self, restart: Restart, record: EpochRecord, lease: Lease) -> None:
        """Take over what is retained and checkpointed, with a record whose state is here; publish what was committed,
        and sweep what nobody knows, if the lease of before `restart` still holds: loading may have taken long."""
        committed, right = restart.committed, self._meta.right(lease)
        self._deadlines.rest()
        self._house.begin(restart, record)
        self._delivery.check()
        self._delivery.publication.publish_all(lease)
        self._delivery.publication.sweep(committed + 1, right)
        self._streams.recover(right, self._house.swept_before(committed))
        self._house.sweep(committed, right)

    def _set_out(self, restart: Restart) -> None:
        self._work.write_program(self.program)
        self._hand_over(restart.began + 1)
        self._recovery.enter("replay")
        self._replaying: int | None = self._protocol.planned
        self._recovered_from = restart.began
        if self._protocol.planned == restart.began:
            self._recovered()

    def _recovered(self) -> None:
        """All that was planned before is committed: the fragment is where it was."""
        assert self._replaying is not None
        replayed = self._replaying - self._recovered_from
        self._replaying = None
        if self._recovered_from or replayed:
            report = self._recovery.done(
                self.program.name, self._recovered_from, replayed, self._record.positions, self._gathered
            )
            self._on_recovery(report)

    # loop

    def _step(self) -> bool:
        """Do what is to be done next; False when all is done."""
        protocol = self._protocol
        self._deadlines.step()
        self._authority.renew()
        self.publish_due()
        most = self._options.max_epochs
        if self.should_stop() or (most is not None and protocol.planned >= most):
            protocol.end()
        instruction = protocol.next()
        if instruction is None:
            self._wait()
        elif instruction.act is Act.PLAN:
            self._plan(instruction.epoch)
        elif instruction.act is Act.LAUNCH:
            self._launch(instruction.epoch)
        elif instruction.act is Act.COMMIT:
            self._commit(instruction.epoch)
        else:
            return False
        return True

    def publish_due(self) -> None:
        """Let readers see what was gathered for long enough."""
        self._delivery.publication.publish_due(self._authority.lease)

    def _publish_all(self) -> None:
        self._delivery.publication.publish_all(self._authority.lease)

    def _wait(self) -> None:
        """Wait until a job ends, or until the tasks of the newest one have read their input."""
        event = self._flights.wait(self._protocol.launched, watch=self._options.overlap, most=self._patience)
        if event is not None:
            what, epoch = event
            (self._protocol.on_read if what == "read" else self._protocol.on_finished)(epoch)
            return
        if self._executors.missing() and self._stop:
            raise ClusterError(
                f"stopped while there was no executor from {self._executors.master} to finish the epoch",
                cure="nothing is lost: the epoch is run again at the next start",
                epoch=self._protocol.launched,
            )
        self._flights.see_to(self.committed + 1)

    def _plan(self, epoch: int) -> None:
        """Fix the next slice of each source, if there is any input."""
        upstream_ended = self._upstream_ended()  # before looking: what was written until then is seen below
        in_flight = sum(self._planned_rows.get(number, 0) for number in self._planned)
        room = self._streams.room(self._trigger.rows(self._pacer.rows), in_flight)
        self._notices.look(self._authority.lease, self._positions)
        if not room:
            self._rest()
            return
        tasks = self._tasks
        due, taken = self._trigger.is_due(self._clock()), None
        if due:
            taken = take_input(self.program, self._positions, self._done, room, tasks, epoch, self._deadlines)
        if taken is None and self._commands.waiting(self.program.name):
            taken = nothing_taken(self.program, self._positions, self._done, tasks)  # what was asked for is done now
        if taken is None and not due:
            self._rest()
            return
        if taken is None:
            self._nothing_to_read(upstream_ended)
            return
        if due:
            self._trigger.began(self._clock())
        self._planned_rows[epoch] = taken.rows
        self.fix_plan(epoch, taken.inputs(), tasks)

    def fix_plan(self, epoch: int, inputs: Mapping[str, Any], tasks: int) -> None:
        """Write the plan of an epoch, with what was asked for by commands. One may be taken back meanwhile."""
        while True:
            with contextlib.suppress(CommandGoneError):
                self._planned_as(epoch, self._fixed(epoch, inputs, tasks))
                return

    def _fixed(self, epoch: int, inputs: Mapping[str, Any], tasks: int) -> Mapping[str, Any]:
        obeyed = obey(self.program, self._commands.waiting(self.program.name), self._routing, self._tasks, epoch)
        now = self._clock()
        # How far rows are ahead of the clock is decided by this reading of it, also when the epoch runs again.
        plan = new_plan(self.program, {**inputs, "now": now}, tasks, obeyed.routing)

        def answer(connection: sa.Connection) -> None:
            for number, text in obeyed.answers.items():
                self._commands.answer_in(connection, number, text, now)

        lease = self._authority.lease
        winner = self._meta.plan(lease, epoch, plan, now, also=answer if obeyed.answers else None)
        self._tasks = obeyed.tasks
        return winner

    def _planned_as(self, epoch: int, winner: Mapping[str, Any]) -> None:
        """The plan of an epoch is fixed."""
        self._planned[epoch] = winner
        self._routing = {name: Routing.from_json(bounds) for name, bounds in winner["routing"].items()}
        self._protocol.overlap = self._protocol.overlap and self._may_overlap()
        self._positions, self._done = dict(winner["positions"]), dict(winner["done"])
        self._protocol.on_planned(epoch)

    def _nothing_to_read(self, upstream_ended: bool) -> None:
        idle = self._options.until_idle and upstream_ended and not is_awaited(self.program, self._positions)
        if all(self._done.values()) or idle:
            self._protocol.end()
        else:
            self._rest()

    def _rest(self) -> None:
        """Nothing to plan: see to the epochs in flight, or wait a moment."""
        if self._protocol.launched == self._protocol.committed:
            record = self._house.checkpoints.idle(self.committed, self._record)
            if record is not None:
                self._save(record)
            time.sleep(self._options.poll)
        else:
            self._wait()

    def _launch(self, epoch: int) -> None:
        self._flights.board(epoch, self._planned[epoch], silent=epoch in self._lost, **self._told)
        if epoch == self._protocol.committed + 1:
            self._hand_over(epoch)
        self._flights.start(epoch)
        self._protocol.on_launched(epoch)

    def _hand_over(self, epoch: int) -> None:
        plan = self._planned.get(epoch)
        self._flights.handed_over(epoch)
        if plan is not None:
            handover = self._begin.handover(plan, self._tier())
            replayed = self._lost[epoch].footings if epoch in self._lost else {}
            handover["footprints"] = self._house.footprints.handover(
                epoch, self._house.checkpoints.policy, plan["routing"], replayed=replayed
            )
            self._work.write_handover(epoch, handover)

    def _tier(self) -> Tier:
        return self._house.checkpoints.tier

    # epochs that Structured Streaming cuts

    @property
    def committed(self) -> int:
        return self._protocol.committed

    @property
    def trigger_seconds(self) -> float:
        """The least time between the beginnings of two epochs."""
        return self._options.trigger_seconds or 0.0

    @property
    def until_idle(self) -> bool:
        return self._options.until_idle

    def should_stop(self) -> bool:
        epochs, seconds = self._options.max_epochs, self._options.max_seconds
        return (
            self._stop
            or (epochs is not None and self.committed >= epochs)
            or (seconds is not None and self._clock() - self._began >= seconds)
        )

    def keep_lease(self) -> None:
        """Called often while Structured Streaming runs batches."""
        self._authority.renew()
        self._flights.see_to(self.committed + 1)
        self._executors.missing()  # and said so, if a batch waits for them

    def run_batch(self, source: str, rows: DataFrame, batch: int) -> None:
        """Run a micro-batch as an epoch, unless it was committed before."""
        epoch = batch + 1
        if epoch <= self.committed:
            return
        while not self._streams.room(self._pacer.rows, 0) and not self.should_stop():
            time.sleep(self._options.poll)
        if epoch not in self._planned:
            inputs = {"slices": {}, "positions": {source: {"batch": batch}}, "done": {source: False}}
            self.fix_plan(epoch, inputs, 1)
        self._flights.board(epoch, self._planned[epoch])
        self._hand_over(epoch)
        self._protocol.on_launched(epoch)
        self._flights.fly(epoch, rows.limit(0) if self._planned[epoch].get("passed") else rows)
        self._protocol.on_finished(epoch)
        self._commit(epoch)

    # commit

    def _commit(self, epoch: int) -> None:
        flight = self._flights.land(epoch)
        assert flight.messages is not None
        self._check_written(epoch, flight.messages)
        record, facts = merge_commits(self._record, flight.plan, flight.messages)
        lost = self._lost.pop(epoch, None)
        busy = flight.busy(self._protocol.overlap)
        if lost is None:
            record, controls = self._house.completed(epoch, record, self._record, facts, busy)
            made, record = record, self._commit_fresh(epoch, record, facts, flight, controls)
        else:
            record = self._house.based(epoch, made_again(lost, record, epoch, self.program.name))
            self._meta.recommit(self._authority.lease, epoch, record.to_json())
            self._record = record
            self._committed(epoch)
        # Until all that was lost is made again, another start begins where this one did.
        self._house.committed(epoch, record, facts, busy, {self._recovered_from} if self._lost else ())
        self._streams.committed()
        self._work.forget(epoch)
        if epoch == self._replaying:
            self._recovered()
        self._pacer.measured(facts["read"], busy)
        # Two short epochs in flight only wait for each other; overlap pays where reading takes a while.
        self._protocol.overlap = flight.reading() > _WORTH_OVERLAPPING and self._may_overlap()
        if lost is None:
            report = self._reported(epoch, record, facts, flight)
            if record is made:
                self._on_epoch(report)

    def _check_written(self, epoch: int, messages: list[Message]) -> None:
        check_written(self.program, epoch, messages, self._tiers.at("stable"), self._begin.files())

    def _reported(self, epoch: int, record: EpochRecord, facts: Mapping[str, Any], flight: Flight) -> EpochReport:
        """What the epoch was; it was run here, and may have been committed by another."""
        times = {"started": flight.started, "ended": flight.ended, "committed": self._clock()}
        return make_report(self.program, epoch, record, facts, **times)

    def _commit_fresh(
        self,
        epoch: int,
        record: EpochRecord,
        facts: Mapping[str, Any],
        flight: Flight,
        controls: Mapping[str, Mapping[str, Control]],
    ) -> EpochRecord:
        """Commit an epoch and let it be seen. Returns the record to go on with."""
        assert flight.messages is not None
        delivered = self._delivery.before_commit(epoch, flight.messages, vector_of(self.program, record.positions))
        footprints, durable = self._house.footprints, self._house.checkpoints.positions
        lineage = lineage_of(self.program, record, epoch)
        also = self._streams.writes(
            self._record, record, flight.messages, epoch, facts["read"], durable, controls, footprints.placed,
            footprints.writes(epoch, controls, lineage) if controls or record.footings else None,
        )  # fmt: skip
        also = self._delivery.publication.writes(epoch, record.receipts, also)
        lease, now, keep_from = self._authority.lease, self._clock(), self._house.keep_from(epoch)
        fresh = self._meta.commit(lease, epoch, record.to_json(), now, keep_from=keep_from, also=also)
        self._record = record if fresh else self._outrun(epoch, record)
        self._committed(epoch)
        if fresh:
            self._delivery.publication.publish()
            self._delivery.after_commit(epoch, delivered)
        return self._record

    def _outrun(self, epoch: int, record: EpochRecord) -> EpochRecord:
        """The epoch was committed before; what to go on with."""
        return record

    def _committed(self, epoch: int) -> None:
        self._begin = self.compacting.between_epochs(self._record)
        self._landed(epoch)

    def _landed(self, epoch: int) -> None:
        self._protocol.on_committed(epoch)
        self._planned.pop(epoch, None)
        self._planned_rows.pop(epoch, None)
        self._hand_over(epoch + 1)

    def _end(self) -> None:
        """A clean end: all state goes to the stable tier, so that nothing has to be replayed at the next start."""
        self._house.end(self.committed, self._record, self._save)

    def _save(self, record: EpochRecord, forget: bool = False) -> None:
        """Write the last record again, whose state has become durable, and let go what was kept to replay it; with
        `forget` also the epochs before it, whose state was not made durable."""
        also = self._streams.released(self._house.checkpoints.positions, self.committed)
        keep_from = self.committed if forget else 0
        self._meta.recommit(self._authority.lease, self.committed, record.to_json(), also, keep_from=keep_from)
        self._record = record
