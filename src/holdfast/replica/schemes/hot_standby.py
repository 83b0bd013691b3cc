"""Passive standby, hot: the secondary copies the primary's state and queues the input, and processes that queue when it
takes over."""

from __future__ import annotations

from holdfast.engine.roles import Role
from holdfast.replica.schemes.abilities import (
    FOLLOWS_STATE,
    HAS_PROGRAM,
    HAS_SESSION,
    HAS_STATE,
    QUEUES_INPUT,
    RECEIVES_INPUT,
)
from holdfast.replica.schemes.phases import connect_downstream, replay_queue
from holdfast.replica.schemes.scheme import Scheme

__all__ = ["HOT_STANDBY"]

HOT_STANDBY = Scheme(
    name="passive standby hot",
    summary="the secondary keeps the state and the input",
    role=Role.HOT,
    abilities=(HAS_SESSION, HAS_PROGRAM, HAS_STATE, FOLLOWS_STATE, RECEIVES_INPUT, QUEUES_INPUT),
    recovery=(connect_downstream, replay_queue),
)
