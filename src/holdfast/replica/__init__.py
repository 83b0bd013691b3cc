"""Replicas of a fragment: the schemes of keeping a secondary, the controller that chooses one, and the hosts.

What is decided is pure, with clock, store and network passed in; `host`, `membership` and `supervisor` are what acts on
it.
"""
