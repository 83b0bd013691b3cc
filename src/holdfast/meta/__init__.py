"""The meta store: one small transactional store of epochs, manifests, streams and leases."""

from holdfast.meta.arrivals import Arrivals, Count, TakenBatch
from holdfast.meta.commands import Command, Commands
from holdfast.meta.leases import Lease
from holdfast.meta.migration import Upgraded, upgrade
from holdfast.meta.outputs import Group, OutputMeta
from holdfast.meta.repairs import Repair, Repairs
from holdfast.meta.seat_tables import LeaseHolder, ReplicaMeta, ReplicaRow, SeatsUpdate
from holdfast.meta.store import Commit, MetaStore, PlannedEpoch, opened_meta
from holdfast.meta.stream_entries import Entry, Marker, NewEntry, StreamMeta, StreamState, is_operator

__all__ = [
    "Arrivals",
    "Command",
    "Commands",
    "Commit",
    "Count",
    "Entry",
    "Group",
    "Lease",
    "LeaseHolder",
    "Marker",
    "MetaStore",
    "NewEntry",
    "OutputMeta",
    "PlannedEpoch",
    "Repair",
    "Repairs",
    "ReplicaMeta",
    "ReplicaRow",
    "SeatsUpdate",
    "StreamMeta",
    "StreamState",
    "TakenBatch",
    "Upgraded",
    "is_operator",
    "opened_meta",
    "upgrade",
]
