"""Passive standby, cold: the secondary copies the primary's state, and requests the input only when it takes over."""

from __future__ import annotations

from holdfast.engine.roles import Role
from holdfast.replica.schemes.abilities import FOLLOWS_STATE, HAS_PROGRAM, HAS_SESSION, HAS_STATE
from holdfast.replica.schemes.phases import connect_downstream, connect_upstream, replay_since_sync
from holdfast.replica.schemes.scheme import Scheme

__all__ = ["COLD_STANDBY"]

COLD_STANDBY = Scheme(
    name="passive standby cold",
    summary="the secondary keeps the state",
    role=Role.COLD,
    abilities=(HAS_SESSION, HAS_PROGRAM, HAS_STATE, FOLLOWS_STATE),
    recovery=(connect_downstream, connect_upstream, replay_since_sync),
)
