"""Replicas of a fragment: the schemes for running a secondary, the controller that chooses one, and the hosts.

Decisions are pure, with clock, store and network passed in; `host`, `membership` and `supervisor` act on them.
"""
