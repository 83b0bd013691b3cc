"""Descriptors: what is read, and what each kind of mistake is told."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from samples import figure_1

from holdfast.errors import DescriptorError, HoldfastError
from holdfast.laar import load_descriptor, read_descriptor, read_strategy

Change = Callable[[dict[str, Any]], Any]


def without(field: str) -> Change:
    return lambda said: said.pop(field)


def put(*path: str | int, value: Any) -> Change:
    def change(said: Any) -> None:
        for step in path[:-1]:
            said = said[step]
        said[path[-1]] = value

    return change


EDGE = {"from": "pe2", "to": "pe1", "selectivity": 1, "cost": 0.1}
BAD: dict[str, tuple[Change, str]] = {
    "no format": (without("format"), "format"),
    "another format": (put("format", value="laar-instance-9"), "format"),
    "no edges": (without("edges"), "edges"),
    "no target": (without("ic_target"), "ic_target"),
    "no capacity": (without("K"), "K"),
    "a misspelt field": (lambda said: put("placment", value=said.pop("placement"))(said), "placment"),
    "sources that are no list": (put("sources", value="source"), "sources"),
    "no sources": (put("sources", value=[]), "sources"),
    "a PE twice": (put("pes", value=["pe1", "pe1"]), "pes[1]"),
    "a PE with a source's name": (put("pes", value=["pe1", "source"]), "pes[1]"),
    "a name that is a number": (put("pes", 0, value=7), "pes[0]"),
    "an empty name": (put("pes", 0, value=""), "pes[0]"),
    "a configuration twice": (put("configs", 1, "name", value="Low"), "configs[1].name"),
    "no configurations": (put("configs", value=[]), "configs"),
    "probabilities that sum to less than 1": (put("configs", 0, "prob", value=0.7), "configs"),
    "a negative probability": (put("configs", 0, "prob", value=-0.2), "configs[0].prob"),
    "a probability above 1": (put("configs", 0, "prob", value=1.2), "configs[0].prob"),
    "a probability that is no fraction": (put("configs", 0, "prob", value="2:3"), "configs[0].prob"),
    "a probability over 0": (put("configs", 0, "prob", value="1/0"), "configs[0].prob"),
    "a rate too many": (put("configs", 1, "rates", value=[8, 9]), "configs[1].rates"),
    "a negative rate": (put("configs", 1, "rates", 0, value=-8), "configs[1].rates[0]"),
    "a rate that is not finite": (put("configs", 1, "rates", 0, value=float("nan")), "configs[1].rates[0]"),
    "a configuration that is no object": (put("configs", 1, value=3), "configs[1]"),
    "a negative selectivity": (put("edges", 1, "selectivity", value=-1), "edges[1].selectivity"),
    "a selectivity that is a text": (put("edges", 1, "selectivity", value="1"), "edges[1].selectivity"),
    "an edge without a cost": (lambda said: said["edges"][1].pop("cost"), "edges[1].cost"),
    "a negative cost": (put("edges", 0, "cost", value=-0.1), "edges[0].cost"),
    "a cost that is true": (put("edges", 0, "cost", value=True), "edges[0].cost"),
    "an edge from nowhere": (put("edges", 1, "from", value="pe3"), "edges[1].from"),
    "an edge to nowhere": (put("edges", 1, "to", value="pe3"), "edges[1].to"),
    "an edge into a source": (put("edges", 1, "to", value="source"), "edges[1].to"),
    "an edge twice": (lambda said: said["edges"].append(said["edges"][0]), "edges[2]"),
    "a cycle": (lambda said: said["edges"].append(EDGE), "edges["),
    "an edge to itself": (lambda said: said["edges"].append({**EDGE, "from": "pe1"}), "edges[2]"),
    "no hosts": (put("n_hosts", value=0), "n_hosts"),
    "half a host": (put("n_hosts", value=1.5), "n_hosts"),
    "no capacity at all": (put("K", value=0), "K"),
    "a capacity too few": (put("K", value=[1]), "K"),
    "a negative capacity": (put("K", value=[1, -1]), "K[1]"),
    "no replicas": (put("k", value=0), "k"),
    "an unknown host": (put("placement", 1, 0, value=2), "placement[1][0]"),
    "a negative host": (put("placement", 1, 0, value=-1), "placement[1][0]"),
    "two replicas on a host": (put("placement", 1, value=[1, 1]), "placement[1][1]"),
    "a replica too few": (put("placement", 1, value=[1]), "placement[1]"),
    "a PE without a place": (put("placement", value=[[0, 1]]), "placement"),
    "no period": (put("T", value=0), "T"),
    "a target above 1": (put("ic_target", value=1.1), "ic_target"),
    "a target that is null": (put("ic_target", value=None), "ic_target"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_mistake_is_told_with_its_place_and_a_cure(kind: str) -> None:
    change, place = BAD[kind]
    said = figure_1()
    change(said)
    with pytest.raises(DescriptorError) as told:
        read_descriptor(said)
    assert told.value.place is not None
    assert told.value.place.startswith(place)
    assert str(told.value).startswith(told.value.place)
    assert told.value.cure
    assert isinstance(told.value, HoldfastError)
    assert pickle.loads(pickle.dumps(told.value)).place == told.value.place


def test_a_cycle_is_named() -> None:
    said = figure_1()
    said["edges"].append(EDGE)
    with pytest.raises(DescriptorError, match=r"pe\d → pe\d → pe\d"):
        read_descriptor(said)


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"format"}', ""])
def test_what_is_not_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "application.json"
    path.write_text(text)
    with pytest.raises(DescriptorError):
        load_descriptor(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DescriptorError, match="cannot read"):
        load_descriptor(tmp_path / "none.json")


def test_decimals_and_fractions_are_exact() -> None:
    said = figure_1(ic_target="2/3")
    said["configs"][0]["prob"], said["configs"][1]["prob"] = "2/3", "1/3"
    found = read_descriptor(json.dumps(said))
    assert found.edges[0].cost == Fraction(1, 10)
    assert [config.prob for config in found.configs] == [Fraction(2, 3), Fraction(1, 3)]
    assert found.ic_target == Fraction(2, 3)


def test_thirds_as_decimals_are_taken() -> None:
    said = figure_1()
    said["configs"][0]["prob"], said["configs"][1]["prob"] = 2 / 3, 1 / 3
    assert read_descriptor(said).configs[0].prob == Fraction(repr(2 / 3))


def test_what_may_be_left_out() -> None:
    said = figure_1(K=[1, 2], note="of another program")
    for field in ("k", "T", "placement", "name"):
        said.pop(field)
    found = read_descriptor(said)
    assert (found.replicas, found.period, found.placement) == (2, 1, None)
    assert found.capacities == (1, 2)


def test_replicas_share_the_only_host() -> None:
    assert read_descriptor(figure_1(n_hosts=1, placement=[[0, 0], [0, 0]])).hosts == 1


def test_a_descriptor_survives_json() -> None:
    found = read_descriptor(figure_1(K=[1, 2.5], ic_target="2/3"))
    assert read_descriptor(found.encode()) == found


@pytest.mark.parametrize(
    ("strategy", "place"),
    [
        ({}, "strategy.Low"),
        ({"Low": [[1, 1], [1, 1]], "High": [[1, 1]]}, "strategy.High"),
        ({"Low": [[1, 1], [1]], "High": [[1, 1], [1, 1]]}, "strategy.Low[1]"),
        ({"Low": [[1, 1], [1, 2]], "High": [[1, 1], [1, 1]]}, "strategy.Low[1][1]"),
        ({"Low": [[1, 1], [1, 1]], "High": [[1, 1], [1, 1]], "Mid": []}, "strategy.Mid"),
        (None, "strategy"),
    ],
)
def test_a_mistake_in_a_strategy_is_told_with_its_place(strategy: Any, place: str) -> None:
    with pytest.raises(DescriptorError) as told:
        read_strategy(json.dumps({"strategy": strategy}), read_descriptor(figure_1()))
    assert told.value.place == place


def test_a_solution_without_a_strategy_says_why_there_is_none() -> None:
    with pytest.raises(DescriptorError, match="there is none: the status is 'infeasible'") as caught:
        read_strategy('{"status": "infeasible", "strategy": null}', read_descriptor(figure_1()))
    assert "ic_target" in caught.value.cure
