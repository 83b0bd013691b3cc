"""Push-up: choosing the place of a p-stream by the bytes that each place would write.

A sample of the source's rows is run through the operators and encoded as the p-stream would do it, at every place that
the rules allow; the fewest bytes win, and of places that are nearly equal the one that was declared, or is nearest to
it. Without a sample, rules alone decide. The choice is kept with the stream: fragments and state depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from holdfast.errors import PipelineChangedError
from holdfast.graph.nodes import Node, Persist, SourceNode, reconnected
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.hidden_columns import PANE, ROW_SEQ, ROW_TIME
from holdfast.operators.lift import lift_partials
from holdfast.operators.panes import pane_shape
from holdfast.plan.chain import Chain
from holdfast.plan.lifted import lifted_window
from holdfast.plan.places import Cut, by_rule, lossy_at, places_of
from holdfast.plurals import counted
from holdfast.pstream.codecs import Chooser, encode_frame
from holdfast.pstream.codecs.costs import Costs
from holdfast.pstream.description import MeasuredPlace, Place, Placement

__all__ = ["AFRESH", "check_placement", "decide", "sources_above"]

AFRESH = "give the pipeline another name or choose another --store to start from the beginning, or undo the change"
"""What can be done about a change that does not fit."""

_BANDWIDTH = 250e6
_NEARLY_EQUAL = 0.95


def decide(nodes: Mapping[str, Node], cut: Cut, samples: Mapping[str, pl.DataFrame]) -> Placement:
    """The place of a cut. `samples` are rows of the sources that its rows come from, none where there are none."""
    places = places_of(nodes, cut)
    if not cut.push_up:
        return Placement(places[0], "it was declared with push_up=False")
    sample = sum(frame.height for frame in samples.values())
    if not sample:
        return Placement(by_rule(nodes, places), "by rule, nothing measured: after the first filters and projections")
    try:
        measured = tuple(_measure(nodes, cut, place, samples, sample) for place in places)
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises; the run names it in its place
        return Placement(
            by_rule(nodes, places),
            "by rule: after the first filters and projections; the sample could not be measured, because an operator"
            f" raised {type(error).__name__}: {str(error).partition(chr(10))[0]}",
        )
    best = measured[0]
    for candidate in measured[1:]:
        if candidate.bytes_per_row < best.bytes_per_row * _NEARLY_EQUAL:
            best = candidate
    reason = f"fewest bytes of {counted(len(measured), 'place')} in a sample of {counted(sample, 'row')}"
    if best is measured[0] and len(measured) > 1:
        reason = f"no other place writes clearly less, in a sample of {counted(sample, 'row')}"
    return Placement(best.place, reason, sample, measured)


def _measure(
    nodes: Mapping[str, Node],
    cut: Cut,
    place: Place,
    samples: Mapping[str, pl.DataFrame],
    sample: int,
) -> MeasuredPlace:
    node = nodes[cut.name]
    lossy = lossy_at(nodes, cut, place)
    frames = []
    for source, rows in samples.items():
        made = Chain(_past_persist(nodes, cut)).frames([place.after], {source: rows.lazy()})
        if place.after in made:
            frames.append(_written(nodes, place, made[place.after]))
    frame = pl.concat(frames) if frames else pl.DataFrame()
    size = float(frame.estimated_size())
    encoded = size
    if frame.height and (not isinstance(node, Persist) or node.compress):
        # As small as the encodings make it: what time they take depends on how busy the machine is, and places do not.
        chooser = Chooser(_BANDWIDTH, lossy, costs=Costs(clock=_no_time), clock=_no_time)
        chooser.observe(frame)
        encoded = encode_frame(frame, chooser.plan(), lossy).nbytes
    return MeasuredPlace(place, encoded / sample, size / sample, frame.height)


def _no_time() -> float:
    return 0.0


def _past_persist(nodes: Mapping[str, Node], cut: Cut) -> dict[str, Node]:
    """The nodes with the cut taken out: its readers read what it reads."""
    if cut.pushed:
        return dict(nodes)
    return {
        name: reconnected(node, tuple(cut.entry if upstream == cut.name else upstream for upstream in node.inputs))
        for name, node in nodes.items()
    }


def _written(nodes: Mapping[str, Node], place: Place, rows: pl.LazyFrame) -> pl.DataFrame:
    if place.window is None:
        return rows.select(place.columns).collect()
    window, time = lifted_window(nodes[place.window]), nodes[place.after].time
    assert time is not None
    shape = pane_shape(window)
    rows = rows.with_columns(time.expr().alias(ROW_TIME)).with_columns(
        pl.col(ROW_TIME).floordiv(shape.pane).alias(PANE),
        pl.int_range(pl.len(), dtype=pl.Int64).alias(ROW_SEQ[0]),
        pl.lit(0, pl.Int64).alias(ROW_SEQ[1]),
    )
    return lift_partials(rows, window, list(window.keys), bounded=False).sort(PANE, *window.keys).collect()


def check_placement(nodes: Mapping[str, Node], cut: Cut, placement: Placement, pipeline: str) -> None:
    """Refuse a placement of an earlier run that the pipeline, as it is now, does not allow."""
    place = placement.place
    allowed = places_of(nodes, cut)
    if (place.after, place.window) not in {(known.after, known.window) for known in allowed}:
        renamed = f"call that operator '{place.after}' again, with .named('{place.after}') after it; or "
        raise PipelineChangedError(
            f"pipeline '{pipeline}' has changed: p-stream '{cut.name}' was cut after '{place.after}'"
            + (f", at the partials of '{place.window}'" if place.window else ""),
            cure=AFRESH if place.after in nodes else renamed + AFRESH,
            operator=cut.name,
        )
    # Of the places behind the same operator the last is the one with the fewest columns: those that are read.
    needed = [known for known in allowed if (known.after, known.window) == (place.after, place.window)][-1].columns
    missing = [name for name in needed if name not in place.columns]
    if missing:
        raise PipelineChangedError(
            f"pipeline '{pipeline}' has changed: it reads column '{missing[0]}', which p-stream '{cut.name}' does not"
            " keep",
            cure=AFRESH,
            operator=cut.name,
        )
    gone = [name for name in place.columns if name not in nodes[place.after].schema]
    if gone:
        raise PipelineChangedError(
            f"pipeline '{pipeline}' has changed: '{place.after}' no longer has the column '{gone[0]}', which p-stream"
            f" '{cut.name}' keeps",
            cure=AFRESH,
            operator=cut.name,
        )


def sources_above(nodes: Mapping[str, Node], name: str) -> list[SourceNode] | None:
    """The sources that rows at `name` come from by stateless operators alone; None if there is another operator."""
    found: dict[str, SourceNode] = {}
    pending = [name]
    while pending:
        node = nodes[pending.pop()]
        if isinstance(node, SourceNode):
            found[node.name] = node
        elif isinstance(node, Stateless) and node.sampled:
            pending += node.inputs
        else:
            return None
    return list(found.values())
