"""What a scheme is: how a secondary is kept ready while nothing fails, and what is left to do after a failure."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.engine.roles import Role
from holdfast.replica.schemes.abilities import RECEIVES_INPUT, Ability
from holdfast.replica.schemes.phases import Phase
from holdfast.stored_json import OwnForm

__all__ = ["Scheme"]


class Scheme(OwnForm):
    """`name` is what users type and what is stored; `summary` says what the secondary does. `role` is what the engine
    runs in the second seat. `abilities` are what the secondary has and does beforehand, which is what a scheme costs;
    `recovery` are the phases that remain once the failure was noticed, in their order."""

    __slots__ = ("abilities", "name", "recovery", "role", "summary")
    name: str
    summary: str
    role: Role
    abilities: tuple[Ability, ...]
    recovery: tuple[Phase, ...]

    def __init__(
        self, name: str, summary: str, role: Role, abilities: tuple[Ability, ...], recovery: tuple[Phase, ...]
    ) -> None:
        self._set(name=name, summary=summary, role=role, abilities=abilities, recovery=recovery)

    def stored(self) -> str:
        return self.name

    @staticmethod
    def of(stored: object) -> Scheme:
        """The scheme of a stored name; ValueError where there is none."""
        from holdfast.replica.schemes.wheel import scheme_of  # noqa: PLC0415 - the wheel is made of schemes

        return scheme_of(stored)

    # There is one of each: what is not the same scheme is another one.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Callable[[object], Scheme], tuple[str]]:
        return Scheme.of, (self.name,)

    @property
    def needs_secondary(self) -> bool:
        """Whether a second host is kept at all."""
        return bool(self.abilities)

    @property
    def processes(self) -> bool:
        """Whether the secondary processes, too: then the outputs of both must agree."""
        return self.role in (Role.FOLLOW, Role.SHARE)

    @property
    def both_commit(self) -> bool:
        """Whether either host commits, whichever is first: then no failure has to be noticed for output to continue."""
        return self.role is Role.SHARE

    @property
    def receives_input(self) -> bool:
        """Whether the secondary has the input when it takes over, and need not fetch it again."""
        return RECEIVES_INPUT in self.abilities

    @property
    def is_ready_with_session(self) -> bool:
        """Whether a session is all that the secondary needs: nothing of the pipeline runs there."""
        return self.needs_secondary and self.role is Role.NONE

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<scheme {self.name}>"
