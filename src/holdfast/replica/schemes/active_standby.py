"""Active standby: the secondary processes what the primary processes, and withholds its output until it takes over."""

from __future__ import annotations

from holdfast.engine.roles import Role
from holdfast.replica.schemes.abilities import HAS_PROGRAM, HAS_SESSION, HAS_STATE, PROCESSES, RECEIVES_INPUT
from holdfast.replica.schemes.phases import connect_downstream, publish_withheld
from holdfast.replica.schemes.scheme import Scheme

__all__ = ["ACTIVE_STANDBY"]

ACTIVE_STANDBY = Scheme(
    name="active standby",
    summary="the secondary processes, and withholds its output",
    role=Role.FOLLOW,
    abilities=(HAS_SESSION, HAS_PROGRAM, HAS_STATE, RECEIVES_INPUT, PROCESSES),
    recovery=(connect_downstream, publish_withheld),
)
