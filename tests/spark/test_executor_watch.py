"""What is waited for is said after ten seconds and every minute, and what waits can be stopped."""

from __future__ import annotations

from holdfast.spark.executor_watch import Waiting


def test_it_is_said_within_ten_seconds_and_every_minute() -> None:
    now = [100.0]
    said: list[str] = []
    waiting = Waiting("the master", said.append, lambda: now[0])
    for second in range(200):
        now[0] = 100.0 + second
        waiting.look()
    assert said == [f"waiting for {seconds} s for the master" for seconds in (5, 65, 125, 185)]
