"""A drill from its question to its report: kill something of a running pipeline, wait until it has gone on, and judge.

The pipeline's own process does the killing (`engine/drill_strike.py`), asked by a command of the meta store. Here is
who asks: what is checked before, what is measured, and the verdict. Nothing is killed that could not be judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.dashboard.drill_proof import DrillProof, can_be_proved, proved
from holdfast.dashboard.drill_report import DrillForecast, DrillReport, keep_report
from holdfast.dashboard.store_watch import Snapshot
from holdfast.dashboard.what_if import outlooks
from holdfast.epoch.plan import EpochPlan
from holdfast.errors import HoldfastError, UnknownStateError
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Commit, MetaStore, opened_meta
from holdfast.plan.drill_command import DrillAnswer, DrillCommand, Victim
from holdfast.ui.command_answer import await_answer
from holdfast.watch.event_kinds import ActionAsked
from holdfast.watch.event_log import EventLog

__all__ = ["Drill", "drill_code", "planned_drill", "run_drill"]

_PAUSE_SECONDS = 0.1
_SECONDS_FOR_ANOTHER = 5.0
"""The epoch after the one that was struck is compared, too, if it comes that soon."""
_MOST_COMPARED = 4


@dataclass(frozen=True, slots=True)
class Drill:
    """What is to be killed, of which fragment, and what is predicted for it."""

    pipeline: str
    fragment: str
    kill: Victim
    host: str
    forecast: DrillForecast
    bound: float | None


def planned_drill(snapshot: Snapshot, pipeline: str, kill: Victim, fragment: str | None = None) -> Drill:
    """What would be done. Raises where it cannot be done now."""
    parts = snapshot.pipelines.get(pipeline)
    if parts is None:
        known = ", ".join(snapshot.pipelines) or "none"
        raise UnknownStateError(f"there is no pipeline '{pipeline}'", cure=f"the store has: {known}")
    chosen = _fragment(snapshot, pipeline, parts, fragment)
    status = snapshot.statuses.get(chosen)
    if status is None or not status.running:
        raise UnknownStateError(f"'{chosen}' is not running", cure="a drill needs something to kill: start it first")
    agreed, host = snapshot.agreed.get(chosen), ""
    if kill == "host":
        if agreed is None or agreed.ended or agreed.seats.primary is None:
            raise UnknownStateError(
                f"no hosts run '{chosen}': one process does, which nothing would restart",
                cure="run it with `holdfast up`, or drill a worker: --kill worker",
            )
        host = agreed.seats.primary.host
    outlook = next(one for one in outlooks(snapshot, pipeline) if one.fragment == chosen and one.kill == kill)
    forecast = DrillForecast(
        seconds=outlook.seconds, epochs=outlook.epochs, rows=outlook.rows, cost=outlook.cost, text=outlook.text
    )
    described = snapshot.descriptions.get(pipeline)
    return Drill(pipeline, chosen, kill, host, forecast, None if described is None else described.guarantee.recovery)


def _fragment(snapshot: Snapshot, pipeline: str, parts: tuple[str, ...], asked: str | None) -> str:
    if asked is None:  # the one with most state has most to lose
        return max(parts, key=lambda part: _rows(snapshot, part))
    for part in parts:
        if asked in (part, part.removeprefix(f"{pipeline}.")):
            return part
    raise UnknownStateError(f"'{pipeline}' has no fragment '{asked}'", cure=f"it has: {', '.join(parts)}")


def _rows(snapshot: Snapshot, part: str) -> int:
    status = snapshot.statuses.get(part)
    return -1 if status is None else sum(state.rows for state in status.state.values())


def drill_code(snapshot: Snapshot, pipeline: str) -> str:
    """Where the code of a pipeline is, as `FILE:NAME`: its epochs are run again with it."""
    deployed, described = snapshot.deployments.get(pipeline), snapshot.descriptions.get(pipeline)
    found = deployed.target if deployed is not None else "" if described is None else described.target
    if not found:
        raise UnknownStateError(
            f"the store does not know the code of '{pipeline}', which a program runs, not a command",
            cure="give it, so that epochs can be run again and compared: --code FILE[:NAME]",
        )
    return found


def run_drill(
    drill: Drill,
    pipeline: Pipeline,
    store: Path,
    meta: str | None = None,
    *,
    wait: float = 120.0,
    by: str = "holdfast drill",
    say: Callable[[str], None] = lambda text: None,
) -> DrillReport:
    """Do it. The report is kept in the store, and is an event."""
    if problem := can_be_proved(pipeline, store, meta, drill.fragment):
        raise UnknownStateError(
            f"a drill of '{drill.fragment}' could not be judged, so nothing was killed: {problem}",
            cure="drill another fragment (--fragment), or retain epochs for longer (--retain 1min)",
        )
    with EventLog(store, "drill") as log, opened_meta(store, meta, writes=True) as opened:
        what = f"a drill: kill {'a worker' if drill.kill == 'worker' else f'host {drill.host}'}"
        log.put(ActionAsked(at=time.time(), pipeline=drill.pipeline, fragment=drill.fragment, what=what, by=by))
        said = await_answer(opened, drill.fragment, DrillCommand(drill.kill, drill.host).encode(), wait)
        answer = DrillAnswer.decode(said)
        if answer.epoch is None:
            raise HoldfastError(answer.problem or "the drill was refused", cure=answer.cure)
        say(f"{answer.what} was killed while epoch {answer.epoch} was in flight")
        commits = _after(opened, drill.fragment, answer.epoch, wait)
        report = _judged(drill, answer, commits, pipeline, store, meta, say)
        keep_report(store, report)
        log.put(report.event())
    return report


def _after(opened: MetaStore, fragment: str, epoch: int, wait: float) -> list[Commit]:
    """The commits that are known when the struck epoch is among them; none if it is not for so long."""
    until, since = time.monotonic() + wait, None
    while True:
        last, now = opened.last_epoch(fragment), time.monotonic()
        if last >= epoch:
            since = since or now
            if last > epoch or now > since + _SECONDS_FOR_ANOTHER:
                return opened.commits(fragment)
        elif now > until:
            return []
        time.sleep(_PAUSE_SECONDS)


def _judged(
    drill: Drill,
    answer: DrillAnswer,
    commits: list[Commit],
    pipeline: Pipeline,
    store: Path,
    meta: str | None,
    say: Callable[[str], None],
) -> DrillReport:
    assert answer.epoch is not None
    made = DrillReport(
        pipeline=drill.pipeline, fragment=drill.fragment, kill=drill.kill, what=answer.what, at=answer.at,
        epoch=answer.epoch, predicted=drill.forecast, bound=drill.bound,
    )  # fmt: skip
    back = next((commit for commit in commits if commit.epoch == answer.epoch), None)
    if back is None:
        return _with(made, DrillProof(problem=f"epoch {answer.epoch} was not committed"))
    struck = [commit.epoch for commit in reversed(commits) if commit.planned_at <= answer.at < commit.committed_at]
    later = [commit.epoch for commit in reversed(commits) if commit.epoch > answer.epoch]
    epochs = [*dict.fromkeys([*struck, answer.epoch, *later])][:_MOST_COMPARED]
    say(f"it has recovered; running {len(epochs)} epochs again to compare digests")
    proof = proved(pipeline, store, meta, drill.fragment, epochs)
    rows = {commit.epoch: _read(commit) for commit in commits}
    return _with(
        made, proof, seconds=max(0.0, back.committed_at - answer.at), rows=sum(rows[epoch] for epoch in struck)
    )


def _with(made: DrillReport, proof: DrillProof, *, seconds: float | None = None, rows: int = 0) -> DrillReport:
    return msgspec.structs.replace(
        made, seconds=seconds, rows=rows, compared=tuple(proof.compared), differences=proof.differences,
        problem=proof.problem,
    ).judged()  # fmt: skip


def _read(commit: Commit) -> int:
    plan = EpochPlan.decode(commit.plan)
    return sum(plan.rows_of(source) for source in plan.slices)
