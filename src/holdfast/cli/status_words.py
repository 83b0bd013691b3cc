"""What `holdfast status` and `explain` say of repairs and lookup tables, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast.epoch.lookup_version import LookupVersion
    from holdfast.epoch.repair_messages import RepairOutcome
    from holdfast.ui.pipeline_status import RepairStatus

__all__ = ["repair_in_words", "version_in_words"]


def version_in_words(version: LookupVersion, now: float | None) -> str:
    """Which version of a lookup table is used, and, where the pipeline runs `now`, how old that is."""
    from holdfast.ui.figures import duration, wall_time

    age = "" if now is None else f", {duration(max(0.0, now - version.seen))} ago"
    rows, name = counted(version.unit.rows, "row"), version.unit.name[:12]
    return f"version {name} with {rows}, read {wall_time(version.taken)}, last seen {wall_time(version.seen)}{age}"


def repair_in_words(repair: RepairStatus) -> str:
    """What was asked for and what came of it, in a sentence."""
    from holdfast.epoch.repair_messages import Replan

    what, outcome = repair.what, repair.outcome
    if isinstance(what, Replan):
        numbers = ", ".join(str(epoch) for epoch in what.epochs)
        asked = f"plan again: {counted(len(what.epochs), 'epoch')}" + (f" ({numbers})" if numbers else "")
    else:
        asked = f"skip {what.file}" if what.epoch is None else f"skip epoch {what.epoch}"
    if outcome is None:
        came = "pending until the next start"
    elif outcome.problem is not None:
        came = f"not done: {outcome.problem}"
    else:
        came = "done" + _passed(outcome)
    return f"{asked}; {came}; reason: {repair.reason}"


def _passed(outcome: RepairOutcome) -> str:

    if outcome.rows is None:
        return f", from {outcome.since:,} on" if outcome.since else ""
    rows = ", ".join(f"about {counted(count, 'row')} of {source}" for source, count in outcome.rows.items())
    files = [f"{part.file} from {part.low:,} to {part.high:,}" for part in outcome.files or ()]
    files += [f"{outcome.more_files:,} more"] if outcome.more_files else []
    return f", {rows}" + (f": {'; '.join(files)}" if files else "")
