"""A first strategy where hosts are nearly full: what is found is valid, and where there is one it is found."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.laar import Status, solve
from holdfast.laar.application_generator import Sizes, generate
from holdfast.laar.descriptor import Descriptor
from holdfast.laar.fullest_strategy import fullest
from holdfast.laar.model import Model
from holdfast.laar.replica_packer import Packer
from holdfast.laar.strategy import Strategy
from strategies import examples


def found(said: Descriptor) -> Strategy | None:
    """Without a limit of time; everything is worth the same."""
    model = Model(said)
    assert said.placement is not None
    packers = [Packer(model, c, said.placement) for c in range(model.n_configs)]
    return fullest(model, packers, [np.ones(model.n_pes) for _ in packers], lambda: 1e6)


@pytest.mark.parametrize("seed", [20, 42])
def test_a_large_application_that_rounding_finds_nothing_for_has_a_strategy(seed: int) -> None:
    """96 PEs on 8 hosts; for the second of them the search found nothing in 30 s."""
    said = generate(seed, Sizes(8, 12), Fraction("0.67"))
    strategy = found(said)
    assert strategy is not None
    assert Model(said).evaluate(strategy).valid


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.sampled_from([Sizes(2, 2), Sizes(2, 3), Sizes(3, 2), Sizes(2, 2, sources=2), Sizes(3, 1, replicas=3)]),
    target=st.sampled_from(["0.4", "0.6", "0.67", "0.8", "0.95"]),
)
def test_what_is_found_is_valid_and_nothing_is_found_where_there_is_nothing(
    seed: int, sizes: Sizes, target: str
) -> None:
    said = generate(seed, sizes, Fraction(target))
    strategy = found(said)
    solution = solve(said, 60.0)
    if strategy is not None:
        evaluation = Model(said).evaluate(strategy)
        assert evaluation.problems == ()
        assert solution.cost is not None
        assert evaluation.cost >= solution.cost
    else:
        full = sum(bool(Packer(Model(said), c, said.placement or ()).critical) for c in range(len(said.configs)))
        assert full > 1 or solution.status is Status.INFEASIBLE, "one configuration alone is searched to the end"
