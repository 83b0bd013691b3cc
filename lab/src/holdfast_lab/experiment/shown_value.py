"""A value of a result as people read it, in tables and on the axes of plots."""

from __future__ import annotations

from typing import Any

__all__ = ["shown_value"]


def shown_value(value: Any) -> str:
    """Three digits that matter; thousands and more by their unit."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(shown_value(item) for item in value)
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) and abs(value) < 10_000:
        return str(value)
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit * 0.9995:
            return f"{value / (1e3 if unit == ' k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
