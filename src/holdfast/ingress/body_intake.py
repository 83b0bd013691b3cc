"""From a body to rows that are handed in for their source: at once where it is short, otherwise in another thread."""

from __future__ import annotations

from concurrent.futures import Future

from holdfast.errors import BodyTooLargeError
from holdfast.ingress.body_rows import Decoded, decode
from holdfast.ingress.media import Media, unpack
from holdfast.ingress.target import IngressTarget, Received
from holdfast.ingress.weight import Hold
from holdfast.meta import Count
from holdfast.pstream.appender import Ack

__all__ = ["hand_in", "hand_in_at_once", "too_large"]

_SHORT_TEXT, _SHORT_ARROW = 16 << 10, 256 << 10
"""Bodies of so many bytes are decoded at once, unless they are packed."""
_LIGHT = 1 << 20
"""And so are rows that take so many bytes of memory at most."""


class _HeavyError(Exception):
    """Rows would take more memory than those that are decoded at once."""


def hand_in_at_once(
    target: IngressTarget,
    media: Media,
    body: bytearray,
    batch: str | None,
    received: Received,
    count: Count | None = None,
) -> tuple[Future[Ack], Decoded] | None:
    """`hand_in` for the thread that serves all clients; None where that could take long."""
    short = _SHORT_ARROW if media.kind.startswith("arrow") else _SHORT_TEXT
    if media.encoding != "identity" or len(body) > short or target.appender.is_full:
        return None
    before = received.bytes

    def hold(more: int) -> None:
        if received.bytes + more > before + _LIGHT:
            raise _HeavyError
        received.add(more)

    try:
        return _decoded(target, media, body, batch, received, hold, count)
    except _HeavyError:
        received.reduce(before)
        return None


def hand_in(
    target: IngressTarget,
    media: Media,
    body: bytearray,
    batch: str | None,
    received: Received,
    count: Count | None = None,
) -> tuple[Future[Ack], Decoded]:
    if media.encoding != "identity":
        sent, body = body, unpack(media, body, target.source.max_body)
        received.add(max(0, len(body) - len(sent)))
        del sent
    return _decoded(target, media, body, batch, received, received.add, count)


def _decoded(
    target: IngressTarget,
    media: Media,
    body: bytearray,
    batch: str | None,
    received: Received,
    hold: Hold,
    count: Count | None,
) -> tuple[Future[Ack], Decoded]:
    before = received.bytes
    decoded = decode(media.kind, body, target.source, hold)
    if decoded.skipped:
        target.count(skipped=decoded.skipped)
    answer = target.submit(decoded.frame, batch, count)
    received.reduce(before)  # from here on the rows are counted as those that wait for the disk
    return answer, decoded


def too_large(target: IngressTarget, what: str) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"{what} is more than the limit of {target.source.max_body:,} bytes",
        cure="cut it into several batches, each with its own batch id, or declare push(..., max_body=...)",
    )
