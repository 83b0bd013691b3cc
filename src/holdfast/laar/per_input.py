"""What a row of each input costs and brings, from epochs that read different amounts of them.

Non-negative least squares over the epochs. Where inputs rise and fall together their parts cannot be told apart: then
each row is taken to cost and to bring the same. Either way all rows together come to what was measured, so that the
load is not taken for less than it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["per_row"]

_FEWEST_EPOCHS = 4
"""For each input."""
_INDEPENDENT = 0.1
"""Least over greatest singular value of the inputs, each scaled to length 1: below it noise would decide."""
_SWEEPS = 1_000

_Array = NDArray[np.float64]


def per_row(rows: _Array, totals: _Array) -> _Array:
    """For each input (a column of `rows`, which has a row per epoch) what one row of it adds to the epochs' totals."""
    even = np.full(rows.shape[1], totals.sum() / max(rows.sum(), 1.0))
    lengths = np.linalg.norm(rows, axis=0)
    if rows.shape[1] == 1 or len(rows) < _FEWEST_EPOCHS * rows.shape[1] or not lengths.all():
        return even
    scaled = rows / lengths
    singular = np.linalg.svd(scaled, compute_uv=False)
    if singular[-1] < _INDEPENDENT * singular[0]:
        return even
    found = _non_negative(scaled.T @ scaled, scaled.T @ totals) / lengths
    reached = float(found @ rows.sum(axis=0))
    return found * (totals.sum() / reached) if reached > 0 else even


def _non_negative(squares: _Array, wanted: _Array) -> _Array:
    """The least squares without negative parts, one coordinate after the other. The diagonal of `squares` is 1."""
    found = np.zeros(len(wanted))
    for _ in range(_SWEEPS):
        before = found.copy()
        for at in range(len(found)):
            found[at] = max(0.0, found[at] + wanted[at] - squares[at] @ found)
        if np.abs(found - before).max() <= 1e-12 * max(1.0, np.abs(found).max()):
            break
    return found
