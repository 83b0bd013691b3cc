"""The papers' experiments on this machine: `holdfast experiment NAME`. `frame.py` says how to write one."""

from holdfast.experiment.frame import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most

__all__ = ["Bar", "Experiment", "Figure", "Result", "Row", "Settings", "at_least", "at_most"]
