"""Cores of their own for hosts."""

from __future__ import annotations

import os

import pytest

from holdfast.errors import DeclarationError
from holdfast.replica.cores import keep_to, usable, well_spread

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")


def test_each_host_has_as_many_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5, 6})
    assert well_spread(["a", "b"]) == {"a": (0, 1), "b": (4, 5)}
    assert well_spread([str(n) for n in range(6)])["5"] == (0,), "more hosts than cores share them"
    assert well_spread([]) == {}, "all of them are started elsewhere"


def test_a_process_keeps_to_its_cores() -> None:
    before = usable()
    try:
        keep_to(frozenset(before[:1]))
        assert usable() == before[:1]
        with pytest.raises(DeclarationError, match="there is no core 4711"):
            keep_to(frozenset([4711]))
    finally:
        os.sched_setaffinity(0, before)
