"""Checkpoint policies: when state is made durable, for `checkpoint=` of a run or of an operator.

By default the one that costs least is used, of those that keep the pipeline's guarantee.
"""

from holdfast.graph.policies.catalog import *  # noqa: F403 - a new policy is listed there, and nowhere else
from holdfast.graph.policies.catalog import __all__ as __all__
