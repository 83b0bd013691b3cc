"""The scheduler of simulations: a seed decides everything, and who was killed has no effect any more."""

from __future__ import annotations

import pytest

from holdfast_lab.simulate.scheduler import Process, Scheduler
from holdfast_lab.simulate.simulated_threads import SimulatedThreads


def run(scheduler: Scheduler, until: float = 100.0) -> None:
    try:
        scheduler.run(until)
    finally:
        scheduler.close()


def test_time_jumps_to_what_is_due() -> None:
    scheduler = Scheduler(1)
    process = Process("a", "box")
    seen: list[float] = []

    def work() -> None:
        for _ in range(3):
            scheduler.sleep(1000.0)
            seen.append(scheduler.time)

    scheduler.spawn(process, work, "main")
    run(scheduler, 1e6)
    assert [round(time) for time in seen] == [1000, 2000, 3000]


def _order(seed: int) -> list[str]:
    scheduler = Scheduler(seed, [])
    order: list[str] = []

    def work(name: str) -> None:
        for _ in range(5):
            scheduler.step("", 0.001)
            order.append(name)

    for name in "abc":
        scheduler.spawn(Process(name, "box"), lambda name=name: work(name), "main")  # type: ignore[misc]
    run(scheduler)
    return order


def test_a_seed_decides_who_runs_next() -> None:
    assert _order(3) == _order(3)
    assert len({tuple(_order(seed)) for seed in range(10)}) > 5


def test_a_killed_process_never_runs_again_and_its_finally_has_no_effect() -> None:
    scheduler = Scheduler(1)
    process = Process("a", "box")
    done: list[str] = []

    def work() -> None:
        try:
            scheduler.sleep(1.0)
            done.append("slept")
            scheduler.sleep(10.0)
            done.append("slept again")
        finally:
            scheduler.step("a file is removed")
            done.append("cleaned up")

    scheduler.spawn(process, work, "main")
    scheduler.at(5.0, lambda: scheduler.kill(process))
    run(scheduler)
    assert done == ["slept"]


def test_who_kills_itself_does_not_go_on() -> None:
    scheduler = Scheduler(1)
    process = Process("a", "box")
    done: list[str] = []

    def work() -> None:
        scheduler.kill(process)
        done.append("after")

    scheduler.spawn(process, work, "main")
    run(scheduler)
    assert done == []


def test_a_paused_process_wakes_up_late() -> None:
    scheduler = Scheduler(1)
    process = Process("a", "box")
    woke: list[float] = []

    def work() -> None:
        scheduler.sleep(2.0)
        woke.append(scheduler.time)

    scheduler.spawn(process, work, "main")
    scheduler.at(1.0, lambda: setattr(process, "paused_until", 7.0))
    run(scheduler)
    assert woke == [7.0]


def test_what_a_thread_does_not_catch_ends_the_run() -> None:
    scheduler = Scheduler(1)
    scheduler.spawn(Process("a", "box"), lambda: 1 // 0, "main")  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        run(scheduler)


def test_threads_wait_for_one_another_as_the_systems_do() -> None:
    scheduler = Scheduler(1)
    process = Process("a", "box")
    threads = SimulatedThreads(scheduler, process)
    seen: list[object] = []

    def work() -> None:
        changed, ready = threads.condition(), []

        def provide() -> None:
            threads.sleep(3.0)
            with changed:
                ready.append(1)
                changed.notify_all()

        provider = threads.start(provide, "provider")
        with changed:
            seen.append(bool(changed.wait_for(lambda: ready, 1.0)))  # too early
            seen.append(bool(changed.wait_for(lambda: ready, 10.0)))
        provider.join()
        pool = threads.pool(2, "pool")
        answers = [pool.submit(lambda n=n: n * n) for n in range(5)]  # type: ignore[misc]
        seen.append([answer.result() for answer in answers])
        pool.shutdown()
        ended = threads.event()
        seen.append(ended.wait(0.5))
        ended.set()
        seen.append(ended.wait(0.5))

    scheduler.spawn(process, work, "main")
    run(scheduler)
    assert seen == [False, True, [0, 1, 4, 9, 16], False, True]


def test_something_befalls_a_process_after_so_many_of_its_steps() -> None:
    scheduler = Scheduler(1)
    process, other = Process("a", "box"), Process("b", "box")
    done: list[str] = []

    def work(name: str) -> None:
        for number in range(5):
            scheduler.step()
            done.append(f"{name}{number}")

    scheduler.spawn(process, lambda: work("a"), "main")
    scheduler.spawn(other, lambda: work("b"), "main")
    scheduler.after_steps(process, 3, lambda: scheduler.kill(process))
    scheduler.run(10.0)
    scheduler.close()
    assert [each for each in done if each.startswith("a")] == ["a0", "a1"]
    assert len([each for each in done if each.startswith("b")]) == 5
