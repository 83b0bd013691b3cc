"""State in panes of event time: what time windows, and joins within them, have in common.

A pane is the largest stretch of time of which all windows consist. Windows close as the watermark passes their ends,
and what is in panes that no open window has is discarded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.nodes import StreamJoin, WindowAggregate
from holdfast.graph.windows import TimeWindow
from holdfast.hidden_columns import PANE
from holdfast.operators.contract import FootprintRule, Operator
from holdfast.operators.pane_footprints import FOOTPRINTS, footprint_table
from holdfast.operators.sliding import WindowShape
from holdfast.operators.state_merge import PaneMerge
from holdfast.operators.step import Grain, StepContext
from holdfast.state.manifest import Interval, Manifest
from holdfast.state.tables import PaneTable, Writer
from holdfast.store import DirectoryStore

__all__ = ["PaneOperator", "expired_panes", "pane_shape", "window_range"]

PanedT = TypeVar("PanedT", bound=WindowAggregate | StreamJoin)


def pane_shape(node: WindowAggregate | StreamJoin) -> WindowShape:
    """The windows of a node in panes, in the unit of the event time."""
    assert isinstance(node.window, TimeWindow)
    assert node.time is not None
    return WindowShape.of(node.time.ticks(node.window.size), node.time.ticks(node.window.slide))


def expired_panes(shape: WindowShape, watermark: int) -> int:
    """The last pane that no window needs which is still open at the watermark."""
    return (shape.last_closed(watermark) + 1) * shape.step - 1


def window_range(
    manifest: Manifest, table: str, new: pl.DataFrame | None, shape: WindowShape, context: StepContext
) -> tuple[int, int]:
    """The first and last window to emit: closed after the epoch, not closed before it, and near some pane."""
    assert context.watermark_after is not None
    lows = [piece.low for piece in manifest.table(table)]
    highs = [piece.high for piece in manifest.table(table)]
    if new is not None and new.height:
        lows.append(_int(new[PANE].min()))
        highs.append(_int(new[PANE].max()))
    if not lows:
        return 0, -1
    first = shape.first_of(min(lows))
    last = shape.last_of(max(highs))
    if context.watermark_before is not None:
        first = max(first, shape.last_closed(context.watermark_before) + 1)
    if context.watermark_after < END_OF_TIME:
        last = min(last, shape.last_closed(context.watermark_after))
    return first, last


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


class PaneOperator(Operator[PanedT]):
    """An operator whose state is in panes. A footprint of a window is all that its pane holds of a key."""

    window = TimeWindow
    bounded = True
    forgets = True

    @property
    def shape(self) -> WindowShape:
        return pane_shape(self.node)

    @property
    def pane(self) -> int:
        return self.shape.pane

    def grain(self, behind: Grain | None) -> Grain:
        return Grain(self.shape.pane)

    def merged_table(self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore) -> PaneMerge:
        panes = footprint_table(self.node, store) if table == FOOTPRINTS else self.pane_table(table, store)
        return PaneMerge(panes, None if watermark is None else expired_panes(self.shape, watermark))

    @abstractmethod
    def pane_table(self, table: str, store: DirectoryStore) -> PaneTable:
        """One of its tables."""

    @property
    def footprints(self) -> FootprintRule:
        return FootprintRule((*self.node.keys, PANE), pane=PANE, grouped=True, resting=False, load=self.load)

    @abstractmethod
    def load(self, inputs: Sequence[pl.Schema], rows: pl.DataFrame, interval: Interval, writer: Writer) -> Manifest:
        """State from the last footprints of all windows in an interval."""

    def wrong_until(self, wrong: int, watermark: int) -> int | None:
        """A window forgets: what lies before its first open window has no part in its state."""
        shape = self.shape
        if wrong >= (shape.last_closed(watermark) + 1) * shape.step * shape.pane:
            return None
        return wrong + shape.length * shape.pane
