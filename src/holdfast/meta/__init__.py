"""The meta store: one small transactional store of epochs, manifests, streams and leases."""

from holdfast.client_batches import Count, TakenBatch
from holdfast.meta.arrivals import Arrivals
from holdfast.meta.commands import Command, Commands
from holdfast.meta.database_setup import DatabaseSetup, set_up_database, setup_script
from holdfast.meta.follower_needs import FollowerNeeds
from holdfast.meta.generations import generation_of
from holdfast.meta.lease_holder import LeaseHolder
from holdfast.meta.leases import Lease
from holdfast.meta.migration import Upgraded, upgrade
from holdfast.meta.outputs import Group, OutputMeta
from holdfast.meta.repairs import Repair, Repairs
from holdfast.meta.run_notes import RunNotes
from holdfast.meta.seat_tables import ReplicaMeta, ReplicaRow, SeatsUpdate
from holdfast.meta.store import Commit, MetaStore, PlannedEpoch, opened_meta
from holdfast.meta.stream_entries import Entry, Marker, MarkerKind, NewEntry, StreamMeta, StreamState, is_operator

__all__ = [
    "Arrivals",
    "Command",
    "Commands",
    "Commit",
    "Count",
    "DatabaseSetup",
    "Entry",
    "FollowerNeeds",
    "Group",
    "Lease",
    "LeaseHolder",
    "Marker",
    "MarkerKind",
    "MetaStore",
    "NewEntry",
    "OutputMeta",
    "PlannedEpoch",
    "Repair",
    "Repairs",
    "ReplicaMeta",
    "ReplicaRow",
    "RunNotes",
    "SeatsUpdate",
    "StreamMeta",
    "StreamState",
    "TakenBatch",
    "Upgraded",
    "generation_of",
    "is_operator",
    "opened_meta",
    "set_up_database",
    "setup_script",
    "upgrade",
]
