"""Deployed: the secondary is a process with a warm session and nothing of the pipeline in it, so it can serve any of
them. When it takes over, it reads the last checkpoint and replays what came since."""

from __future__ import annotations

from holdfast.engine.roles import Role
from holdfast.replica.schemes.abilities import HAS_SESSION
from holdfast.replica.schemes.phases import (
    connect_downstream,
    connect_upstream,
    load_program,
    load_state,
    replay_since_checkpoint,
)
from holdfast.replica.schemes.scheme import Scheme

__all__ = ["DEPLOYED"]

DEPLOYED = Scheme(
    name="deployed",
    summary="the secondary has a warm session, but nothing of the pipeline",
    role=Role.NONE,
    abilities=(HAS_SESSION,),
    recovery=(load_program, connect_downstream, connect_upstream, load_state, replay_since_checkpoint),
)
