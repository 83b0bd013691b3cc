"""LAAR, load-adaptive active replication: which replicas of an application run at which input rates."""

from holdfast.laar.application_generator import Sizes, generate
from holdfast.laar.descriptor import Descriptor, DescriptorEdge, InputConfiguration, load_descriptor, read_descriptor
from holdfast.laar.ft_search import SearchStats, ft_search
from holdfast.laar.model import Evaluation, FailureModel, Model
from holdfast.laar.optimiser import solve
from holdfast.laar.rate_controller import ActivationCommand, ConfigIndex, Hysteresis, RateController
from holdfast.laar.reaction import AT_ONCE, HOSTS, RateTrace, Reaction, reaction_share
from holdfast.laar.solution import Solution, Status
from holdfast.laar.strategy import Strategy, load_strategy, read_strategy

__all__ = [
    "AT_ONCE",
    "HOSTS",
    "ActivationCommand",
    "ConfigIndex",
    "Descriptor",
    "DescriptorEdge",
    "Evaluation",
    "FailureModel",
    "Hysteresis",
    "InputConfiguration",
    "Model",
    "RateController",
    "RateTrace",
    "Reaction",
    "SearchStats",
    "Sizes",
    "Solution",
    "Status",
    "Strategy",
    "ft_search",
    "generate",
    "load_descriptor",
    "load_strategy",
    "reaction_share",
    "read_descriptor",
    "read_strategy",
    "solve",
]
