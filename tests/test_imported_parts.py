"""A part of Holdfast that one thread is importing is not given to another one half-made."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.interrupted_import import import_part


def test_a_part_that_is_being_imported_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_part.py").write_text("import time\ntime.sleep(0.4)\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(getattr(import_part("slow_part"), "value", "none")))
               for _ in range(3)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1, 1, 1]
