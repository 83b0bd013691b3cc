"""What the headers of a request say of its body: the format, and the compression it is sent with.

A compressed body is unpacked up to the limit of a body and no further, so that a small one cannot fill the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.connect.formats.file_format import first_line
from holdfast.errors import BodyTooLargeError, MalformedBodyError, UnsupportedBodyError
from holdfast.ingress.body_rows import BodyKind

__all__ = ["Media", "media_of", "unpack"]

Encoding = Literal["identity", "gzip", "zstd"]

_KINDS: dict[str, BodyKind] = {
    "application/x-ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "text/csv": "csv",
    "application/vnd.apache.arrow.stream": "arrow-stream",
    "application/vnd.apache.arrow.file": "arrow-file",
}
_ENCODINGS: dict[str, Encoding] = {"": "identity", "identity": "identity", "gzip": "gzip", "zstd": "zstd"}
_GZIP = 16 + zlib.MAX_WBITS
_STEP = 1 << 20
_PIECE = 1 << 16
_MOST_MEMBERS = 10_000


@dataclass(frozen=True, slots=True)
class Media:
    """The format of a body, and how it is packed."""

    kind: BodyKind
    encoding: Encoding = "identity"


def media_of(headers: Mapping[str, str]) -> Media:
    """What `Content-Type` and `Content-Encoding` say."""
    name, *parameters = (part.strip().lower() for part in headers.get("content-type", "").split(";"))
    kind = _KINDS.get(name)
    if kind is None:
        raise UnsupportedBodyError(
            f"the Content-Type is {name!r}" if name else "there is no Content-Type",
            cure=f"send one of {', '.join(_KINDS)}",
            place="Content-Type",
        )
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        value = value.strip('"')
        if key == "charset" and value not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedBodyError(f"the charset is {value!r}", cure="send UTF-8", place="Content-Type")
        if key == "header" and value == "absent" and kind == "csv":
            kind = "csv-no-header"
    packed = headers.get("content-encoding", "").strip().lower()
    if packed not in _ENCODINGS:
        raise UnsupportedBodyError(
            f"the Content-Encoding is {packed!r}", cure="send gzip, zstd or none", place="Content-Encoding"
        )
    return Media(kind, _ENCODINGS[packed])


def unpack(media: Media, body: bytearray, limit: int) -> bytearray:
    """The body as it was before it was compressed, if it was."""
    if media.encoding == "identity":
        return body
    try:
        return _gunzip(body, limit) if media.encoding == "gzip" else _unzstd(body, limit)
    except (zlib.error, pa.ArrowException, OSError, EOFError) as error:
        raise MalformedBodyError(
            f"the body is not {media.encoding}: {first_line(error)}",
            cure="send it as its Content-Encoding says",
            place="Content-Encoding",
        ) from error


def _gunzip(body: bytearray, limit: int) -> bytearray:
    """A file of several members is their sum. Fed in pieces: each member leaves a copy of what is not its own."""
    found = bytearray()
    members, unpacker = 1, zlib.decompressobj(_GZIP)
    for start in range(0, len(body), _PIECE):
        piece = bytes(body[start : start + _PIECE])
        while piece:
            if unpacker.eof:
                members, unpacker = members + 1, zlib.decompressobj(_GZIP)
                if members > _MOST_MEMBERS:
                    raise EOFError(f"it has more than {_MOST_MEMBERS:,} members")
            found += unpacker.decompress(piece, _STEP)
            piece = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if len(found) > limit:
                raise _grows(limit)
    while not unpacker.eof:
        part = unpacker.decompress(b"", _STEP)
        found += part
        if len(found) > limit:
            raise _grows(limit)
        if not part:
            raise EOFError("it ends in the middle")
    return found


def _unzstd(body: bytearray, limit: int) -> bytearray:
    with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
        found = bytearray()
        while part := stream.read(_STEP):
            found += part
            if len(found) > limit:
                raise _grows(limit)
    return found


def _grows(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the body unpacks to more than the limit of {limit:,} bytes",
        cure="cut it into several batches, each with its own batch id, or declare push(..., max_body=...)",
    )
