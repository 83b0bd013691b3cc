"""The meta store: one small transactional store of epochs, manifests, streams and leases."""

from holdfast.meta.arrivals import Arrivals, Count, TakenBatch
from holdfast.meta.commands import Command, Commands
from holdfast.meta.leases import Lease
from holdfast.meta.migration import Upgraded, upgrade
from holdfast.meta.outputs import Group, OutputMeta
from holdfast.meta.replicas import Held, ReplicaMeta, ReplicaRow, Seating
from holdfast.meta.store import Commit, MetaStore, PlannedEpoch, opened_meta
from holdfast.meta.streams import Entry, Marker, NewEntry, StreamMeta, StreamState, is_operator

__all__ = [
    "Arrivals",
    "Command",
    "Commands",
    "Commit",
    "Count",
    "Entry",
    "Group",
    "Held",
    "Lease",
    "Marker",
    "MetaStore",
    "NewEntry",
    "OutputMeta",
    "PlannedEpoch",
    "ReplicaMeta",
    "ReplicaRow",
    "Seating",
    "StreamMeta",
    "StreamState",
    "TakenBatch",
    "Upgraded",
    "is_operator",
    "opened_meta",
    "upgrade",
]
