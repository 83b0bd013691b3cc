"""The graph of a pipeline as a picture, for notebooks: one SVG, with the same places as in the dashboard."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from holdfast.graph.graph_layout import DrawnNode, lay_out
from holdfast.graph.nodes import Node, Persist, SideOutput, SinkNode, SourceNode, Stateful

__all__ = ["graph_svg", "node_kind"]

_LONGEST = 21
_NAMES = {
    "source": "source", "sink": "sink", "stream": "p-stream", "side": "side output", "stateful": "stateful operator",
    "stateless": "operator",
}  # fmt: skip
_FILLS = {"source": "#d5f0ec", "sink": "#e3ebf6", "stream": "#fdf0d5", "stateful": "#ece6f8"}
_STYLE = "max-width:100%;height:auto;font-family:system-ui,sans-serif"


def node_kind(node: Node) -> str:
    """What sort of operator it is, in a word."""
    if isinstance(node, SourceNode):
        return "source"
    if isinstance(node, SinkNode):
        return "sink"
    if isinstance(node, Persist):
        return "stream"
    if isinstance(node, SideOutput):
        return "side"
    return "stateful" if isinstance(node, Stateful) else "stateless"


def graph_svg(title: str, nodes: Iterable[Node]) -> str:
    """The picture of operators, each of which comes after its inputs."""
    known = {node.name: node for node in nodes}
    drawing = lay_out({name: node.inputs for name, node in known.items()})
    edges = (f'<path d="{edge.path}" fill="none" stroke="#8a97a6" stroke-width="1.8"/>' for edge in drawing.edges)
    boxes = (_box(place, known[place.name]) for place in drawing.nodes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width:g}" height="{drawing.height:g}"'
        f' viewBox="0 0 {drawing.width:g} {drawing.height:g}" role="img" style="{_STYLE}">'
        f"<title>{escape(title)}</title>{''.join(edges)}{''.join(boxes)}</svg>"
    )


def _box(place: DrawnNode, node: Node) -> str:
    kind = node_kind(node)
    name = node.name if len(node.name) <= _LONGEST else f"{node.name[: _LONGEST - 1]}…"
    keys = f"by {', '.join(node.keys)}" if isinstance(node, Stateful) and node.keys else ""
    columns = f"{len(node.schema)} column{'' if len(node.schema) == 1 else 's'}"
    shown = ", ".join(f"{column} {dtype}" for column, dtype in node.schema.items())
    return (
        f'<g transform="translate({place.x:g},{place.y:g})"><title>{escape(f"{node.name}: {shown}")}</title>'
        f'<rect width="{place.width:g}" height="{place.height:g}" rx="{26 if kind == "stream" else 10}"'
        f' fill="{_FILLS.get(kind, "#f5f6f8")}" stroke="#8a97a6"/>'
        f'<text x="16" y="25" font-size="11" fill="#566273">{_NAMES[kind]}</text>'
        f'<text x="16" y="45" font-size="14" font-weight="600" fill="#17202b">{escape(name)}</text>'
        f'<text x="16" y="65" font-size="11" fill="#566273">{escape(keys or columns)}</text></g>'
    )
