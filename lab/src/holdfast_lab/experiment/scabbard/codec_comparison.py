"""Experiment `codecs`, Fig. 6 of Scabbard: what each encoding makes of each kind of column, and how fast.

The paper's figure has a line per data type and a marker per algorithm, compression ratio against throughput. Its text
gives no figures but says which algorithm does best on which data; those statements are the bars here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from matplotlib.lines import Line2D

from holdfast_lab.codecs.codec_measurements import measure
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least
from holdfast_lab.experiment.plots import COLOURS, MARKERS, readable

__all__ = ["EXPERIMENT", "measured"]

_TYPES = {
    "timestamps, regular": "Timestamp 1",
    "timestamps, crowded": "Timestamp 2",
    "integers, small": "Integer 1",
    "integers, runs": "Integer 2",
    "floats, decimal": "Float, error bound",
    "strings, few": "Dictionary",
}
"""Distributions that stand for a line of the paper's figure; the others have no counterpart there."""

_SAYS = {
    "timestamps, regular": "Delta-of-delta has the best ratio",
    "timestamps, crowded": "Base-delta & RLE offers better performance",
    "integers, small": "Simple-8b has the best ratio, Var-Byte the highest throughput",
    "integers, runs": "NS & RLE yields better results",
    "floats, decimal": "XOR is a good trade-off; an error bound improves compression",
    "strings, few": "dictionary works well for a limited set of repeating values",
}
_STATEMENTS = (
    (
        "timestamps, regular", "ratio of delta-of-delta over base-delta and run-length",
        r"delta\(delta", r"base-delta(\(bit-pack\))?$|run-length\((narrow|base-delta)",
    ),
    ("timestamps, crowded", "ratio of base-delta with run-length over delta-of-delta", "run-length", r"delta\(delta"),
    ("integers, small", "ratio of bit-packing over var-byte", r"base-delta\(bit-pack", r"base-delta\(var-byte"),
    ("integers, runs", "ratio of run-length with narrowing over bit-packing", "run-length", r"base-delta\(bit-pack"),
    ("floats, decimal", "ratio within the error bound over XOR", "scaled", "xor"),
    ("strings, few", "ratio of the dictionary over Snappy", "dictionary", r"text\(bytes\(snappy"),
)  # fmt: skip
"""Data, what is compared, the encodings that should be better, and those they are set against."""

_NOTES = (
    "GB/s are bytes of the plain Arrow column per second of CPU time of one thread; ratios are to the same bytes.",
    "The paper's Fig. 6 is a plot: its text has statements on which algorithm is best, and no figures.",
    "Bit-packing stands for the paper's Simple-8b, narrowing to whole bytes for its word-aligned null suppression.",
    "A column whose second differences are all alike leaves a few bytes: ratios above 1,000 are drawn at 1,000.",
    "The error bound of lossy encodings is 0.005, that is two decimal digits.",
)


_HIGHEST = 1000.0


def run(settings: Settings) -> Result:
    return measured(
        settings,
        rows=settings.pick(quick=1 << 17, full=1 << 20),
        seconds=settings.pick(quick=20.0, full=90.0),
    )


def measured(settings: Settings, rows: int, seconds: float) -> Result:
    """`rows` per column and about so many seconds in all."""

    settings.say(f"measuring the encodings on columns of {rows:,} rows, about {seconds:.0f} s")
    found = [{**row, "paper_type": _TYPES.get(row["data"])} for row in measure(rows, seconds, settings.seed)]
    paper = [
        {"data": data, "ratio": None, "encode_gb_s": None, "says": says, "source": "Scabbard, §5.1 and Fig. 6"}
        for data, says in _SAYS.items()
    ]
    return Result(
        keys=("data", "encoding"),
        rows=found,
        paper=paper,
        bars=_bars(found),
        notes=(*_NOTES, f"Columns have {rows:,} rows."),
        plot=lambda figure: _plot(figure, found),
        shown=("ratio", "encode_gb_s", "decode_gb_s", "lossy"),
    )


def _bars(rows: Sequence[Row]) -> list[Bar]:
    """The paper's statements, as the best ratio of some encodings over the best of those they are set against."""

    def best(data: str, pattern: str) -> float | None:
        found = [row["ratio"] for row in rows if row["data"] == data and re.match(pattern, row["encoding"])]
        return max(found, default=None)

    def over(one: float | None, other: float | None) -> float | None:
        return None if one is None or not other else one / other

    return [
        at_least(f"{_TYPES[data]}: {name}", over(best(data, this), best(data, that)), 1.0)
        for data, name, this, that in _STATEMENTS
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:
    """A panel per kind of column, a line per distribution, a marker per family of encodings.

    The line joins the encodings that no other beats in both ratio and speed; the others are paler.
    """

    kinds = list(dict.fromkeys(row["data"].partition(",")[0] for row in rows))
    families = list(dict.fromkeys(_family(row["encoding"]) for row in rows))
    markers = dict(zip(families, MARKERS, strict=False))
    panels = figure.subplots(2, 2, squeeze=False).flat
    for panel, kind in zip(panels, kinds, strict=False):
        names = list(dict.fromkeys(row["data"] for row in rows if row["data"].startswith(kind)))
        for name, colour in zip(names, COLOURS, strict=False):
            own = [row for row in rows if row["data"] == name]
            front = _front(own)
            panel.plot([row["encode_gb_s"] for row in front], [_height(row) for row in front], color=colour)
            for row in own:
                panel.scatter(
                    row["encode_gb_s"], _height(row), marker=markers.get(_family(row["encoding"]), "."), color=colour,
                    s=42, alpha=1.0 if row in front else 0.3, linewidths=0,
                )  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="encoding, GB/s of one thread", ylabel="compression ratio")
        panel.set_xlim(0.08, 30.0)
        for axis in (panel.xaxis, panel.yaxis):
            readable(axis)
        of_paper = [f"{name.partition(', ')[2]}{f' ({_TYPES[name]})' if name in _TYPES else ''}" for name in names]
        lines = [Line2D([], [], color=colour) for colour, _ in zip(COLOURS, names, strict=False)]
        panel.legend(lines, of_paper, title=kind, fontsize=8, title_fontsize=9)
    shapes = [Line2D([], [], color="black", marker=marker, linestyle="") for marker in markers.values()]
    figure.legend(shapes, list(markers), loc="outside lower center", ncols=8, fontsize=8)


def _height(row: Row) -> float:
    """A column that follows a rule leaves next to no bytes; a ratio of a million would flatten all others."""
    return min(_HIGHEST, float(row["ratio"]))


def _family(encoding: str) -> str:
    """What an encoding does first, with differences of differences and byte codecs told apart."""
    if encoding.startswith("delta(delta"):
        return "delta-of-delta"
    if encoding.startswith("bytes("):
        return encoding[len("bytes(") : -1]
    if encoding.startswith("text(bytes("):
        return encoding[len("text(bytes(") :].partition(")")[0]
    return encoding.partition("(")[0]


def _front(rows: Sequence[Row]) -> list[Row]:
    """Those that no other one beats in both, fastest last."""
    kept: list[Row] = []
    for row in sorted(rows, key=lambda row: (-row["encode_gb_s"], -row["ratio"])):
        if not kept or row["ratio"] > kept[-1]["ratio"]:
            kept.append(row)
    return kept[::-1]


EXPERIMENT = Experiment(
    name="codecs",
    title="Compression ratio against throughput, by data and encoding",
    figure="Scabbard, Fig. 6",
    needs="nothing more",
    run=run,
)
