"""Internal completeness as linear rows: the only part of the problem that is not linear as it stands.

A node's rate under failures is a share of its rate without, from 0 to 1. An edge carries at most the share of the node
it comes from, and nothing unless the PE it leads to works; a PE's share is the mean of its edges' by what they bring.
One variable per edge makes the relaxation far tighter than one per PE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.laar.milp import IntegerProgram
from holdfast.laar.model import Model

__all__ = ["Sum", "add_flow"]


@dataclass(slots=True)
class Sum:
    """A linear expression: a constant and variables with their factors."""

    constant: float = 0.0
    terms: dict[int, float] = field(default_factory=dict)

    def add(self, variable: int | None, factor: float) -> None:
        """Without a variable the factor is added as it is."""
        if variable is None:
            self.constant += factor
        else:
            self.terms[variable] = self.terms.get(variable, 0.0) + factor


def add_flow(program: IntegerProgram, model: Model, config: int, alive: Sequence[int | None]) -> Sum:
    """The part of the completeness that one configuration brings, as an expression in variables of the program.

    `alive[i]` is the binary variable that says whether PE i works, or none if it always does.
    """
    rates, sources = model.rate_floats[config], model.n_sources
    weight = float(model.probs[config] * model.descriptor.period / model.bic) if model.bic else 0.0
    shares: list[int | None] = [None] * (sources + model.n_pes)  # none: all of it, always
    found = Sum()
    for i in model.order:
        output = Sum()
        for edge in model.inflows[i]:
            if not rates[edge.node]:
                continue
            carried = _carried(program, shares[edge.node], alive[i])
            found.add(carried, weight * rates[edge.node])
            if rates[sources + i] > 0:
                output.add(carried, float(edge.selectivity) * rates[edge.node] / rates[sources + i])
        shares[sources + i] = _share(program, output, alive[i])
    return found


def _carried(program: IntegerProgram, origin: int | None, alive: int | None) -> int | None:
    """The share that an edge carries: the lesser of two."""
    if origin is None or alive is None or origin == alive:
        return alive if origin is None else origin
    carried = program.variable()
    program.row({carried: 1.0, origin: -1.0}, high=0.0)
    program.row({carried: 1.0, alive: -1.0}, high=0.0)
    return carried


def _share(program: IntegerProgram, output: Sum, alive: int | None) -> int | None:
    """The variable that an expression is, made if there is none."""
    if not output.terms:
        return alive  # nothing is put out at all, or always everything
    if len(output.terms) == 1 and output.constant == 0.0:
        return next(iter(output.terms))
    share = program.variable()
    program.row({share: 1.0, **{variable: -factor for variable, factor in output.terms.items()}}, output.constant,
                output.constant)  # fmt: skip
    return share
