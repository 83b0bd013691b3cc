"""Replicas of a fragment: the six schemes, the wheel between them, the controller, and the protocol of the hosts.

Everything here is pure: events in, actions out, with clock, store and network passed in. The simulation runs the
protocol against faults; the processes that are hosts run the same machines against the real ones.
"""

from holdfast.replica.schemes import Scheme, direct, path

__all__ = ["Scheme", "direct", "path"]
