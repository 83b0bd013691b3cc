"""What a client of Arrow Flight names: the source by the descriptor of a call, a batch by the metadata beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import flight

from holdfast.errors import MalformedBodyError
from holdfast.ingress.target import check_batch
from holdfast.json_text import parse_json

__all__ = ["asked", "batch_of"]


def asked(descriptor: memoryview) -> tuple[str, str | None]:
    """The source that a descriptor names, and the batch id if it has one."""
    with contextlib.suppress(ValueError, TypeError, pa.ArrowException):
        found = flight.FlightDescriptor.deserialize(bytes(descriptor))
        if found.descriptor_type == flight.DescriptorType.PATH and len(found.path or ()) == 1:
            return found.path[0].decode(errors="replace"), None
        command = parse_json(found.command)
        if isinstance(command, dict) and isinstance(command.get("source"), str):
            return command["source"], _id_in(command)
    raise MalformedBodyError(
        "the descriptor names no source",
        cure='use FlightDescriptor.for_path("<source>"), or a command with the JSON {"source": …, "batch": …}',
        place="descriptor",
    )


def batch_of(metadata: memoryview) -> str | None:
    """The batch id that came with a record batch."""
    if not len(metadata):
        return None
    try:
        found = parse_json(bytes(metadata))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise MalformedBodyError(
            "the metadata of a record batch is not a JSON object", cure='send {"batch": "<id>"}', place="app_metadata"
        )
    return _id_in(found)


def _id_in(found: Mapping[str, Any]) -> str | None:
    batch = found.get("batch")
    return check_batch(batch if batch is None or isinstance(batch, str) else "")
