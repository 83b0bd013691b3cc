"""Hidden columns: what rows carry besides the user's own columns, on the way, in state and in files.

Their names begin with `__hf_`, which no column of a user may. All of them stand here, so that no two mean the same and
none means two things. Those that are stored, in p-units and manifests, must never change.
"""

from __future__ import annotations

__all__ = [
    "ALL",
    "BOUND",
    "CELL",
    "DELETED",
    "FINGERPRINT",
    "FROM",
    "GROUP",
    "HASH",
    "HIDDEN",
    "KIND",
    "LAST",
    "MASK",
    "NUMBER",
    "ONE",
    "OPEN",
    "PANE",
    "POSITION",
    "ROWS",
    "ROW_SEQ",
    "ROW_TIME",
    "SEEN",
    "SESSION",
    "START",
    "TAU",
    "TIMER",
    "TOUCHED",
    "WINDOW",
    "hidden_name",
    "is_hidden",
    "visible",
]

HIDDEN = "__hf_"
"""How the name of every hidden column begins."""

# On the way

POSITION = "__hf_pos"
"""The position of the row's key. Stored."""
ROW_TIME = "__hf_time"
"""The event time of a row, in ticks."""
ROW_SEQ = ("__hf_seq0", "__hf_seq1")
"""What puts rows in the order in which they came: the place of their chunk, and theirs in it. Stored, with rows that
wait for a join."""
BOUND = "__hf_bound"
"""On a row that lies behind the watermark which its source had when the row came: that watermark, else null. On the
way to an operator that wants them all: on every row. Stored in p-streams."""
FROM = "__hf_from"
"""On a row or partial with a bound: the first window that it may still count in, else null. Stored."""
ROWS = "__hf_rows"
"""How many rows a partial stands for. Stored in p-streams of partials."""

# In state

PANE = "__hf_pane"
"""The pane of event time, or of rows, that a row of a pane table belongs to; in a table of timers, when it fires."""
DELETED = "__hf_deleted"
"""Of a keyed table: whether the row says that its key has no state any more."""
ALL = "__hf_all"
"""The key of keyed tables where the operator has none: the same in all rows."""
TOUCHED = "__hf_touched"
"""When rows or timers last touched the key of a keyed process."""
TIMER = "__hf_timer"
"""When the timer of that key fires."""
START, LAST = "__hf_start", "__hf_last"
"""The first and the last event time of a session."""
SEEN = "__hf_seen"
"""How many rows of a key were seen by its count windows."""
OPEN = "__hf_open"
"""The list of a key's open sessions, or of the open panes of its count windows."""

# In footprints

KIND = "__hf_kind"
"""What happened to the window: it opened, it was checked, it closed."""
FINGERPRINT = "__hf_print"
"""A hash of the record."""
TAU = "__hf_tau"
"""The epoch that a footprint is of; the batch's head has it, so that it stands in no record."""

# Within a computation; stored nowhere

WINDOW = "__hf_window"
"""The number of a window."""
SESSION = "__hf_session"
"""The number of a session among sorted rows."""
GROUP = "__hf_group"
"""The number of a key among those of an epoch."""
CELL = "__hf_slot"
"""The place of a pane in the array that windows slide over."""
NUMBER = "__hf_number"
"""The number of a row."""
ONE = "__hf_one"
"""The same in all rows."""
MASK = "__hf_mask"
"""Which rows a filter has let through."""
HASH = "__hf_hash"
"""The hash of a column's values."""


def hidden_name(name: str) -> str:
    """A hidden column of that name, for a computation that makes many."""
    return f"{HIDDEN}{name}"


def is_hidden(name: str) -> bool:
    return name.startswith(HIDDEN)


def visible(names: list[str]) -> list[str]:
    """Those of the columns that are the user's own."""
    return [name for name in names if not is_hidden(name)]
