"""JSON that others wrote: whatever the text is, its value or a ValueError."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json"]


def parse_json(text: str | bytes | bytearray) -> Any:
    """The value of a JSON text. Python's reader has an error of its own for a text that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
