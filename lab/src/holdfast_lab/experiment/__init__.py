"""The papers' experiments on this machine: `holdfast experiment NAME`. `definition.py` says how to write one."""

from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most

__all__ = ["Bar", "Experiment", "Figure", "Result", "Row", "Settings", "at_least", "at_most"]
