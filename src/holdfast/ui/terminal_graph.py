"""The graph and the guarantee of a pipeline for a terminal: the operators in the same columns as in the dashboard, with
what they do, and what is promised next to what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from holdfast.engine.recovery import RecoveryReport
from holdfast.epoch.report import EpochReport
from holdfast.graph.graph_layout import DrawnNode, lay_out
from holdfast.graph.graph_picture import node_kind
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.node_order import topological_order
from holdfast.graph.nodes import Node
from holdfast.graph.pipeline import Pipeline
from holdfast.plurals import counted
from holdfast.ui.figures import amount, duration

__all__ = ["TerminalGraph", "graph_table", "guarantee_text"]

_COLOURS = {"source": "cyan", "stateful": "magenta", "stream": "yellow", "sink": "blue"}
_BUSY, _FULL = 0.5, 0.8
_LONGEST = 22


@dataclass(frozen=True, slots=True)
class TerminalGraph:
    """A pipeline as it was declared."""

    nodes: Mapping[str, Node]
    guarantee: Guarantee = field(default_factory=Guarantee)

    @staticmethod
    def of(pipeline: Pipeline) -> TerminalGraph:
        nodes = {node.name: node for node in topological_order(pipeline.nodes)}
        return TerminalGraph(nodes, pipeline.guarantee)

    def table(self, reports: Iterable[EpochReport], width: int) -> Table | None:
        """With what the operators did in these epochs, one of each fragment. None where it does not fit."""
        known = list(reports)
        return graph_table(self.nodes, {name: _figures(node, known) for name, node in self.nodes.items()}, width)

    def promise(self, recoveries: Sequence[RecoveryReport], epoch: float | None) -> Text:
        """What is declared, predicted and measured. `epoch` is how long one takes: at most two are in flight, and run
        again after a crash."""
        rest = sum(s for phase, s in recoveries[-1].seconds.items() if phase != "replay") if recoveries else 0.0
        return guarantee_text(self.guarantee, recoveries, None if epoch is None else 2 * epoch + rest)


def graph_table(nodes: Mapping[str, Node], figures: Mapping[str, Text], width: int) -> Table | None:
    """A column for each column of the graph, with arrows between them."""
    drawing = lay_out({name: node.inputs for name, node in nodes.items()})
    columns: dict[float, list[DrawnNode]] = {}
    for place in drawing.nodes:
        columns.setdefault(place.x, []).append(place)
    if not columns or width < len(columns) * 12:
        return None
    table = Table.grid(padding=(0, 0))
    cells: list[Text] = []
    for number, x in enumerate(sorted(columns)):
        if number:
            table.add_column(justify="center", vertical="middle")
            cells.append(Text(" ─▶ ", style="dim"))
        table.add_column(vertical="middle", overflow="ellipsis", no_wrap=True)
        lines = [_cell(nodes[place.name], figures[place.name]) for place in sorted(columns[x], key=lambda p: p.y)]
        cells.append(Text("\n").join(lines))
    table.add_row(*cells)
    return table


def _cell(node: Node, figures: Text) -> Text:
    name = node.name if len(node.name) <= _LONGEST else f"{node.name[: _LONGEST - 1]}…"
    told = Text(name, style=f"bold {_COLOURS.get(node_kind(node), 'default')}")
    return Text("\n").join([told, figures])


def _figures(node: Node, reports: list[EpochReport]) -> Text:
    """What an operator does now, in a few words; its colour says how busy it is."""
    for report in reports:
        seconds = max(1e-3, report.committed - report.started)
        if node.name in report.read_by:
            return Text(f"{amount(report.read_by[node.name] / seconds)} rows/s", style="dim")
        if node.name in report.work:
            shares = report.work[node.name]
            busy = max((share.cpu for share in shares), default=0.0) / seconds
            style = "red" if busy > _FULL else "yellow" if busy > _BUSY else "green"
            return Text(f"{counted(len(shares), 'partition')}, {busy:.0%} busy", style=style)
    return Text("", style="dim")


def guarantee_text(guarantee: Guarantee, recoveries: Sequence[RecoveryReport], predicted: float | None) -> Text:
    """What is declared, predicted and measured, in a line."""
    bound = guarantee.recovery_seconds
    parts = ["exactly once" if guarantee.precise else "rows may be left out after a failure"]
    parts.append("no bound on recovery" if bound is None else f"recovery within {duration(bound)}")
    if predicted is not None:
        parts.append(f"{duration(predicted)} if it failed now")
    longest = max((report.total for report in recoveries), default=None)
    parts.append("nothing has failed" if longest is None else f"longest recovery {duration(longest)}")
    worst = max(longest or 0.0, predicted or 0.0)
    style = "dim" if bound is None else "green" if worst <= bound else "red" if (longest or 0.0) > bound else "yellow"
    return Text(" · ".join(parts), style=style)
