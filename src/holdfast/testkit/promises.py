"""The promises that a suite holds a connector to: a failed check says which one it is about, and where it broke."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from holdfast.errors import HoldfastError

__all__ = ["Promises"]


class Promises:
    """Of one run of a suite. `seed` makes its choices the same again."""

    def __init__(self, suite: str, connector: str, seed: int | None) -> None:
        self.seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
        self.random = random.Random(self.seed)
        self._suite, self._connector = suite, connector
        self._promise = ""

    @contextmanager
    def promise(self, text: str) -> Iterator[None]:
        """What is checked within: an error there tells it."""
        self._promise = text
        try:
            yield
        except AssertionError as error:
            if str(error).startswith(self._suite):
                raise
            raise self.broken("while it was checked", str(error)) from error
        except HoldfastError as error:
            raise self.broken("an error came", str(error)) from error
        except Exception as error:
            raise self.broken("an error came", f"{type(error).__name__}: {error}") from error

    def broken(self, step: str, problem: str) -> AssertionError:
        """What to raise where the promise is not kept."""
        return AssertionError(
            f"{self._suite} of {self._connector}: not kept: {self._promise}\n"
            f"  where: {step}\n  what: {problem}\n  again: seed={self.seed}"
        )

    def check(self, kept: object, step: str, problem: str) -> None:
        if not kept:
            raise self.broken(step, problem)

    def comes_back(
        self,
        step: str,
        seconds: float,
        hang: Callable[[], AbstractContextManager[Any]],
        call: Callable[[], object],
        *,
        own_error: bool = True,
    ) -> None:
        """While a server hangs, a call must come back within so many seconds; an error must say what to do. With
        `own_error` it must be one of Holdfast, as where nobody else would make it one."""
        came: list[BaseException | None] = []

        def work() -> None:
            try:
                call()
                came.append(None)
            except BaseException as error:  # noqa: BLE001 - looked at below
                came.append(error)

        with hang():
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join(seconds)
            in_time = bool(came)
        thread.join(seconds)
        self.check(in_time, step, f"it did not come back within {seconds:g} s while the server did not answer")
        error = came[0]
        if error is not None and own_error:
            self.check(
                isinstance(error, HoldfastError),
                step,
                f"it raised {type(error).__name__}: {error}, where an error of hf.errors would say what to do",
            )
