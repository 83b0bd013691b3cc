"""The meta store: one small transactional store of epochs, manifests, streams and leases."""

from holdfast.meta.commands import Command, Commands
from holdfast.meta.repairs import Repair, Repairs
from holdfast.meta.replicas import Held, ReplicaMeta, ReplicaRow, Seating
from holdfast.meta.store import Commit, Lease, MetaStore, PlannedEpoch
from holdfast.meta.streams import Entry, Marker, NewEntry, StreamMeta, StreamState, TakenBatch, is_operator

__all__ = [
    "Command",
    "Commands",
    "Commit",
    "Entry",
    "Held",
    "Lease",
    "Marker",
    "MetaStore",
    "NewEntry",
    "PlannedEpoch",
    "Repair",
    "Repairs",
    "ReplicaMeta",
    "ReplicaRow",
    "Seating",
    "StreamMeta",
    "StreamState",
    "TakenBatch",
    "is_operator",
]
