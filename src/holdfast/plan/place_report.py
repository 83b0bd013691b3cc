"""`explain` for p-streams: where each cuts the pipeline, what every possible place would write, and why this one."""

from __future__ import annotations

from holdfast.plan.cuts import CutPipeline, Receiving, StreamPlan
from holdfast.pstream.description import MeasuredPlace, Place

__all__ = ["explain_receivers", "explain_stream"]


def explain_stream(stream: StreamPlan, cuts: CutPipeline) -> list[str]:
    """A p-stream in words."""
    placement = stream.placement
    readers = [fragment.name for fragment in cuts.fragments if stream.name in fragment.reads]
    writer = next((fragment.name for fragment in cuts.fragments if stream.name in fragment.writes), "its receivers")
    lines = [
        f"p-stream {stream.name}: written by {writer}, read by {', '.join(readers) or 'nothing'}",
        f"  declared after {stream.cut.entry}, placed {_place(placement.place)}",
        f"  because: {placement.reason}",
    ]
    if placement.measured:
        lines.append("  places, by bytes written per row of the source:")
        lines += [_row(measured, stream) for measured in placement.measured]
    return lines


def _row(found: MeasuredPlace, stream: StreamPlan) -> str:
    chosen = " <- here" if found.place == stream.placement.place else ""
    return (
        f"    {found.bytes_per_row:9.3f} B encoded, {found.plain_per_row:9.3f} B plain, {found.rows:>9,} rows: "
        f"{_place(found.place)}{chosen}"
    )


def _place(place: Place) -> str:
    if place.window is not None:
        return f"at the partial aggregates for {place.window}, after {place.after}"
    return f"after {place.after} ({', '.join(place.columns)})"


def explain_receivers(item: Receiving) -> list[str]:
    """What happens to pushed rows before they are durable."""
    chain = ", ".join(item.chain) or "nothing"
    return [
        f"receivers of {item.source.name}: apply {chain}, write {item.stream.name}, and acknowledge once it is durable"
    ]
