"""LAAR, load-adaptive active replication: which replicas of an application run at which input rates."""

from holdfast.completeness.controller import Command, ConfigIndex, Controller, Hysteresis
from holdfast.completeness.descriptor import Configuration, Descriptor, Edge, load_descriptor, read_descriptor
from holdfast.completeness.ftsearch import SearchStats, ft_search
from holdfast.completeness.generate import Sizes, generate
from holdfast.completeness.model import Evaluation, FailureModel, Model
from holdfast.completeness.optimise import solve
from holdfast.completeness.simulate import (
    AT_ONCE,
    HOSTS,
    Crash,
    Deployment,
    Measured,
    Reaction,
    Trace,
    WorstCase,
    paper_trace,
    reaction_share,
    simulate,
)
from holdfast.completeness.solution import Solution, Status
from holdfast.completeness.strategy import Strategy, load_strategy, read_strategy
from holdfast.completeness.variants import variants

__all__ = [
    "AT_ONCE",
    "HOSTS",
    "Command",
    "ConfigIndex",
    "Configuration",
    "Controller",
    "Crash",
    "Deployment",
    "Descriptor",
    "Edge",
    "Evaluation",
    "FailureModel",
    "Hysteresis",
    "Measured",
    "Model",
    "Reaction",
    "SearchStats",
    "Sizes",
    "Solution",
    "Status",
    "Strategy",
    "Trace",
    "WorstCase",
    "ft_search",
    "generate",
    "load_descriptor",
    "load_strategy",
    "paper_trace",
    "reaction_share",
    "read_descriptor",
    "read_strategy",
    "simulate",
    "solve",
    "variants",
]
