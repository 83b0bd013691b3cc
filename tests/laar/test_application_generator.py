"""Generated applications have the properties that the evaluation counts on."""

from __future__ import annotations

from fractions import Fraction

import pytest

from holdfast.laar import Model, Sizes, generate, read_descriptor
from holdfast.laar.strategy import static_strategy

SIZES = [
    Sizes(1, 2),
    Sizes(2, 2),
    Sizes(3, 5),
    Sizes(12, 2),
    Sizes(6, 8),
    Sizes(4, 3, sources=2),
    Sizes(4, 3, levels=4),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_a_generated_application_is_as_the_paper_says(seed: int, sizes: Sizes) -> None:
    said = generate(seed, sizes, Fraction(3, 5))
    model = Model(said)
    assert len(said.pes) == sizes.hosts * sizes.pes_per_host
    assert len(said.configs) == sizes.levels**sizes.sources
    assert sum(config.prob for config in said.configs) == 1
    assert said.configs[-1].prob == Fraction(1, 3) ** sizes.sources
    assert all(1 <= rate <= 20 for config in said.configs for rate in config.rates)
    assert all(low < high for low, high in zip(said.configs[0].rates, said.configs[-1].rates, strict=True))
    assert all(Fraction(1, 2) <= edge.selectivity <= Fraction(3, 2) for edge in said.edges)
    assert all(edges for edges in model.inflows)  # everything is fed
    assert all(model.successors[source] for source in range(sizes.sources))
    assert said.placement is not None
    everything = static_strategy(said, said.placement)
    assert not model.overloaded(0, everything.active[0], said.placement)
    assert model.overloaded(len(said.configs) - 1, everything.active[-1], said.placement)
    if sizes.hosts >= sizes.replicas:
        assert all(len(set(hosts)) == sizes.replicas for hosts in said.placement)
    counts = [sum(hosts.count(host) for hosts in said.placement) for host in range(sizes.hosts)]
    assert set(counts) == {sizes.pes_per_host * sizes.replicas}
    assert read_descriptor(said.encode()) == said


def test_the_out_degree_is_between_one_and_a_half_and_three() -> None:
    for seed in range(20):
        said = generate(seed, Sizes(6, 8), Fraction(1, 2))
        model = Model(said)
        sinks = sum(not feeds for feeds in model.successors)
        degree = (len(said.edges) + sinks) / (len(said.pes) + len(said.sources))
        assert 1.4 < degree < 3.1


def test_the_same_seed_gives_the_same_application() -> None:
    sizes = Sizes(3, 4)
    assert generate(7, sizes, Fraction(1, 2)) == generate(7, sizes, Fraction(1, 2))
    assert generate(7, sizes, Fraction(1, 2)) != generate(8, sizes, Fraction(1, 2))
