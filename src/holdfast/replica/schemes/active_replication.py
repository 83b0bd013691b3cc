"""Active replication: both hosts process and publish, and whoever commits an epoch first wins. There is nothing to
recover, and no failure to detect."""

from __future__ import annotations

from holdfast.engine.roles import Role
from holdfast.replica.schemes.abilities import (
    HAS_PROGRAM,
    HAS_SESSION,
    HAS_STATE,
    PROCESSES,
    PUBLISHES,
    RECEIVES_INPUT,
)
from holdfast.replica.schemes.scheme import Scheme

__all__ = ["ACTIVE_REPLICATION"]

ACTIVE_REPLICATION = Scheme(
    name="active replication",
    summary="the secondary also processes and publishes",
    role=Role.SHARE,
    abilities=(HAS_SESSION, HAS_PROGRAM, HAS_STATE, RECEIVES_INPUT, PROCESSES, PUBLISHES),
    recovery=(),
)
