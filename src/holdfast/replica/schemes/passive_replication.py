"""Passive replication: there is no secondary. After a failure, a new process starts and continues from the last
checkpoint."""

from __future__ import annotations

from holdfast.engine.roles import Role
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.phases import open_spark, start_process
from holdfast.replica.schemes.scheme import Scheme

__all__ = ["PASSIVE_REPLICATION"]

PASSIVE_REPLICATION = Scheme(
    name="passive replication",
    summary="no secondary: a process is started after a failure",
    role=Role.NONE,
    abilities=(),
    recovery=(start_process, open_spark, *DEPLOYED.recovery),
)
