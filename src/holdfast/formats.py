"""Version numbers of everything that is stored or sent. A reader refuses a number it does not know.

Change a format and its number changes with it; `tests/formats/` keeps files of every version there was.
"""

__all__ = [
    "EPOCH_VERSION",
    "EVENT_VERSION",
    "EXPORT_VERSION",
    "MANIFEST_VERSION",
    "MESSAGE_VERSION",
    "OUTPUT_VERSION",
    "OWNER_VERSION",
    "POSITION_VERSION",
    "PUNIT_VERSION",
    "STORE_VERSION",
]

STORE_VERSION = 7
"""The tables of the meta store and the records in them."""

EPOCH_VERSION = 1
"""The JSON of an epoch's plan, hand-over and record. Those of before had no number, and are as version 1 is."""

MESSAGE_VERSION = 1
"""The messages between the processes of a run, and commands to it with their answers. Those of before had no number."""

POSITION_VERSION = 1
"""The function from keys to positions."""

MANIFEST_VERSION = 1
"""The JSON of state manifests."""

PUNIT_VERSION = 1
"""The Arrow files of p-units."""

EXPORT_VERSION = 1
"""The Parquet and Arrow files of exported state."""

OUTPUT_VERSION = 1
"""The manifests of what a file sink has published in an object store."""

OWNER_VERSION = 1
"""The file that says whose an output directory is."""

EVENT_VERSION = 1
"""The lines of the files of events."""
