"""The kinds of plots the experiments share: grouped bars, lines, readable log axes, and saving as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from holdfast_lab.experiment.definition import Row
from holdfast_lab.experiment.shown_value import shown_value

__all__ = ["COLOURS", "MARKERS", "grouped_bars", "lines", "readable", "save"]

# Told apart by people who do not see all colours (Okabe and Ito), and by shape where there are many.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F", "#B8A900", "#332288", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "$e$", "$x$", "$b$")
_SIZE = (10.0, 6.0)
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",
}


def save(draw: Callable[[Figure], None], title: str, directory: Path, name: str) -> list[Path]:
    """Draw on a fresh figure, never on a screen, and write `NAME.png` and `NAME.svg`."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        figure.suptitle(title, fontsize=12)
        paths = [directory / f"{name}.{kind}" for kind in ("png", "svg")]
        for path in paths:
            figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths


def readable(axis: Axis) -> None:
    """Label a log axis with numbers as people write them, between the decades only where there is room."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: shown_value(float(value))))
    low, high = axis.get_view_interval()
    few = high / max(low, 1e-12) < 30
    axis.set_minor_formatter(FuncFormatter(lambda value, _: shown_value(float(value))) if few else NullFormatter())
    axis.set_minor_locator(LogLocator(subs=(2, 5) if few else tuple(range(2, 10)), numticks=99))


def grouped_bars(
    axes: Axes,
    rows: Sequence[Row],
    *,
    group: str,
    value: str,
    ylabel: str,
    series: str | None = None,
    paper: Callable[[Row], Any] | None = None,
    log: bool = False,
) -> None:
    """A group of bars per value of `group`, a bar per value of `series`.

    `paper` gives the paper's figure for a row, or None; it is drawn as a short black line across the bar.
    """
    groups = list(dict.fromkeys(str(row[group]) for row in rows))
    labels = list(dict.fromkeys(str(row[series]) for row in rows)) if series else [value]
    width = 0.8 / len(labels)
    by_paper: list[tuple[float, float]] = []
    for place, label in enumerate(labels):
        own = [row for row in rows if row.get(value) is not None and (series is None or str(row[series]) == label)]
        lefts = [groups.index(str(row[group])) - 0.4 + (place + 0.5) * width for row in own]
        axes.bar(lefts, [row[value] for row in own], width * 0.92, label=label, color=COLOURS[place % len(COLOURS)])
        known = [(left, paper(row)) for left, row in zip(lefts, own, strict=True)] if paper else []
        by_paper += [(left, figure) for left, figure in known if figure is not None]
    if by_paper:
        at, figures = zip(*by_paper, strict=True)
        axes.scatter(at, figures, marker="_", s=260, linewidths=2.5, color="black", zorder=3, label="the paper")
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(ylabel)
    axes.grid(visible=False, axis="x")
    if log:
        axes.set_yscale("log")
        readable(axes.yaxis)
    if len(labels) > 1 or by_paper:
        axes.legend()


def lines(
    axes: Axes,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    xlabel: str,
    ylabel: str,
    log: bool = False,
) -> None:
    """A line per name, from its x and y values."""
    for place, (name, (x, y)) in enumerate(series.items()):
        axes.plot(x, y, label=name, color=COLOURS[place % len(COLOURS)], linewidth=1.8)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if log:
        axes.set_yscale("log")
        readable(axes.yaxis)
    axes.legend()
