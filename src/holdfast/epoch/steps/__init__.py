"""The assembly functions of the stateful operators: (state, arrivals of an epoch) → (state', output).

Each module is one operator. They run in tasks, know nothing of Spark, and are pure but for the p-units they write.
"""

from holdfast.epoch.steps.base import Arrivals, Batch, StepContext, StepResult, assemble

__all__ = ["Arrivals", "Batch", "StepContext", "StepResult", "assemble"]
