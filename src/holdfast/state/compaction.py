"""When to merge pieces: a pure decision over sizes.

Pieces are appended, one per epoch that changed something. Merging the newest ones whenever there are too many keeps
the number of pieces bounded, and merging only runs of similar size keeps the bytes rewritten per row logarithmic.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MOST_PIECES", "merge_from"]

MOST_PIECES = 12
_RATIO = 2


def merge_from(sizes: Sequence[int], most: int = MOST_PIECES) -> int | None:
    """From which index on to merge `sizes` (oldest first) into one piece, or None to leave them.

    The merged run is the newest pieces, reaching back as long as the next older one is not much larger than what
    is merged already, and at least far enough to halve the number of pieces.
    """
    if len(sizes) <= most:
        return None
    start = len(sizes) - 1
    merged = sizes[start]
    while start > 0 and (sizes[start - 1] <= _RATIO * merged or start > most // 2):
        start -= 1
        merged += sizes[start]
    return start
