"""The schemes for running a secondary, one module each, and the wheel on which one turns into another.

A scheme is a value: what its secondary has and does, and what a recovery still has to do. Everything else follows from
that: predictions, costs, how long a step takes, what hosts run. A new scheme is a module here and a line in `wheel`.
"""

from holdfast.replica.schemes.scheme import Scheme

__all__ = ["Scheme"]
