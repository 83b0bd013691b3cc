"""From the version of an old store to today's, step by step, in one transaction.

A version that only added tables needs no step: what is missing is made at the end. A step is a function of the
connection, and works with the tables as that version had them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa

from holdfast.formats import STORE_VERSION
from holdfast.meta.outputs import unpublished_before_version_6
from holdfast.meta.tables import info, metadata
from holdfast.meta.versions import STORE_KEY, version_of

__all__ = ["STEPS", "Step", "migrate"]

Step = Callable[[sa.Connection], None]

STEPS: Mapping[int, Sequence[Step]] = {
    1: (),  # had no streams
    2: (),  # had no commands
    3: (),  # had no control records in entries, and records without footings
    4: (),  # knew no hosts
    5: (unpublished_before_version_6,),  # did not know what was published
}
"""What leads from each version to the next."""


def migrate(connection: sa.Connection) -> None:
    """Bring a store to today's version, as part of a transaction."""
    for version in range(version_of(connection), STORE_VERSION):
        for step in STEPS[version]:
            step(connection)
    metadata.create_all(connection)
    connection.execute(info.update().where(info.c.key == STORE_KEY).values(value=str(STORE_VERSION)))
