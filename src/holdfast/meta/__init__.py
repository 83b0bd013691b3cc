"""The meta store: one small transactional store of epochs, manifests and leases."""

from holdfast.meta.store import Commit, Lease, MetaStore, PlannedEpoch

__all__ = ["Commit", "Lease", "MetaStore", "PlannedEpoch"]
