"""Doing things at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable


def at_once(*work: Callable[[], None]) -> None:
    """Do all of it at the same time; what fails is raised."""
    failed: list[BaseException] = []
    gate = threading.Barrier(len(work))

    def doing(what: Callable[[], None]) -> None:
        try:
            gate.wait(10)
            what()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=doing, args=(what,)) for what in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if failed:
        raise failed[0]
