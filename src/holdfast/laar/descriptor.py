"""The application descriptor: what LAAR knows of an application, its input and its hosts.

Read from JSON (`laar-instance-1`) and checked as a whole: what is not valid is a `DescriptorError` that names the
place and the cure. Numbers are fractions, the decimals as they were written.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import msgspec

from holdfast.errors import DescriptorError
from holdfast.laar.json_reader import JsonPlace, parse
from holdfast.stored_json import encode_json

__all__ = [
    "FORMAT",
    "Descriptor",
    "DescriptorEdge",
    "InputConfiguration",
    "load_descriptor",
    "read_descriptor",
    "read_placement",
]

FORMAT = "laar-instance-1"
_FIELDS = (
    "format", "name", "sources", "pes", "configs", "edges", "n_hosts", "K", "k", "placement", "T", "ic_target",
)  # fmt: skip
_SUM_TOLERANCE = Fraction(1, 10**9)  # thirds written as decimals do not sum to 1


@dataclass(frozen=True, slots=True)
class DescriptorEdge:
    """A stream into a PE: output tuples per input tuple, and CPU cycles per input tuple."""

    origin: str
    target: str
    selectivity: Fraction
    cost: Fraction


@dataclass(frozen=True, slots=True)
class InputConfiguration:
    """An input configuration: how much of the time it holds, and a rate for each source."""

    name: str
    prob: Fraction
    rates: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A valid application descriptor. Without a placement, finding one is part of the problem."""

    name: str
    sources: tuple[str, ...]
    pes: tuple[str, ...]
    configs: tuple[InputConfiguration, ...]
    edges: tuple[DescriptorEdge, ...]
    capacities: tuple[Fraction, ...]
    replicas: int
    placement: tuple[tuple[int, ...], ...] | None
    period: Fraction
    ic_target: Fraction

    @property
    def hosts(self) -> int:
        return len(self.capacities)

    def encode(self) -> str:
        capacities = [_plain(capacity) for capacity in self.capacities]
        return encode_json(
            _StoredDescriptor(
                name=self.name,
                sources=self.sources,
                pes=self.pes,
                configs=[
                    _StoredConfiguration(config.name, _share(config.prob), [_plain(rate) for rate in config.rates])
                    for config in self.configs
                ],
                edges=[
                    _StoredEdge(edge.origin, edge.target, _plain(edge.selectivity), _plain(edge.cost))
                    for edge in self.edges
                ],
                n_hosts=self.hosts,
                capacities=capacities[0] if len(set(capacities)) == 1 else capacities,
                replicas=self.replicas,
                period=_plain(self.period),
                ic_target=_share(self.ic_target),
                placement=self.placement,
            )
        )


# the JSON that is written; `read_descriptor` reads it, and names the place of what is wrong in what people have written


class _StoredConfiguration(msgspec.Struct, frozen=True):
    name: str
    prob: float | str
    rates: list[float]


class _StoredEdge(msgspec.Struct, frozen=True, rename={"origin": "from", "target": "to"}):
    origin: str
    target: str
    selectivity: float
    cost: float


_LETTERS = {"capacities": "K", "replicas": "k", "period": "T"}


class _StoredDescriptor(msgspec.Struct, frozen=True, kw_only=True, rename=_LETTERS, tag=FORMAT, tag_field="format",
                        omit_defaults=True):  # fmt: skip
    name: str
    sources: tuple[str, ...]
    pes: tuple[str, ...]
    configs: list[_StoredConfiguration]
    edges: list[_StoredEdge]
    n_hosts: int
    capacities: float | list[float]
    replicas: int
    period: float
    ic_target: float | str
    placement: tuple[tuple[int, ...], ...] | None = None


def load_descriptor(path: Path) -> Descriptor:
    """The descriptor in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DescriptorError(f"cannot read {path}: {error}", cure="give a readable JSON file") from None
    return read_descriptor(text)


def read_descriptor(said: str | Mapping[str, object]) -> Descriptor:
    """The descriptor in a JSON text, or in what a JSON text was parsed to."""
    top = parse(said, "the descriptor") if isinstance(said, str) else JsonPlace("", said)
    _known_fields(top)
    if top.field("format").value != FORMAT:
        raise top.field("format").wrong(f"is {top.field('format').value!r}", f"this version reads '{FORMAT}'")
    sources = _names(top.field("sources"), "source")
    pes = _names(top.field("pes"), "PE")
    for at, name in zip(top.field("pes").items(), pes, strict=True):
        if name in sources:
            raise at.wrong(f"'{name}' is a source too", "give every source and PE its own name")
    configs = _configs(top.field("configs"), len(sources))
    edges = _edges(top.field("edges"), sources, pes)
    hosts = top.field("n_hosts").whole(1)
    replicas = top.field("k", 2).whole(1)
    return Descriptor(
        name=top.field("name", "application").text(),
        sources=sources,
        pes=pes,
        configs=configs,
        edges=edges,
        capacities=_capacities(top.field("K"), hosts),
        replicas=replicas,
        placement=read_placement(top.field("placement", None), pes, hosts, replicas),
        period=top.field("T", 1).above_zero(),
        ic_target=top.field("ic_target").share(),
    )


def _known_fields(top: JsonPlace) -> None:
    """Fields of others are let pass, but not one that is nearly a field of this format."""
    for name, at in top.entries():
        near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.75)
        if near and name not in _FIELDS and near[0] not in top.value:
            raise at.wrong("is not a field of this format", f"did you mean '{near[0]}'?")


def _names(at: JsonPlace, what: str) -> tuple[str, ...]:
    names: list[str] = []
    for item in at.items():
        name = item.name()
        if name in names:
            raise item.wrong(f"the {what} '{name}' is listed twice", f"give every {what} its own name")
        names.append(name)
    if not names:
        raise at.wrong("is empty", f"list at least one {what}")
    return tuple(names)


def _configs(at: JsonPlace, sources: int) -> tuple[InputConfiguration, ...]:
    configs: list[InputConfiguration] = []
    for item in at.items():
        name = item.field("name").name()
        if any(name == config.name for config in configs):
            raise item.field("name").wrong(f"'{name}' is the name of two configurations", "give each its own name")
        rates = item.field("rates").items()
        if len(rates) != sources:
            raise item.field("rates").wrong(
                f"has {len(rates)} rates for {sources} sources", "give one rate for each source, in their order"
            )
        configs.append(
            InputConfiguration(name, item.field("prob").share(), tuple(rate.at_least_zero() for rate in rates))
        )
    if not configs:
        raise at.wrong("is empty", "list at least one configuration")
    total = sum((config.prob for config in configs), Fraction(0))
    if abs(total - 1) > _SUM_TOLERANCE:
        raise at.wrong(f"the probabilities sum to {float(total):.10g}", "make the fields 'prob' sum to 1")
    return tuple(configs)


def _edges(at: JsonPlace, sources: Sequence[str], pes: Sequence[str]) -> tuple[DescriptorEdge, ...]:
    edges: dict[tuple[str, str], DescriptorEdge] = {}
    for item in at.items():
        origin, target = item.field("from").text(), item.field("to").text()
        if origin not in sources and origin not in pes:
            raise item.field("from").wrong(f"there is no source or PE '{origin}'", "list it, or correct the name")
        if target in sources:
            raise item.field("to").wrong(f"'{target}' is a source, and has no input", "let the edge lead to a PE")
        if target not in pes:
            raise item.field("to").wrong(f"there is no PE '{target}'", "list it in 'pes', or correct the name")
        if (origin, target) in edges:
            raise item.wrong(f"the edge from '{origin}' to '{target}' is listed twice", "merge the two edges")
        edges[origin, target] = DescriptorEdge(
            origin, target, item.field("selectivity").at_least_zero(), item.field("cost").at_least_zero()
        )
    _acyclic(at, list(edges))
    return tuple(edges.values())


def _acyclic(at: JsonPlace, edges: Sequence[tuple[str, str]]) -> None:
    graph: TopologicalSorter[str] = TopologicalSorter()
    for origin, target in edges:
        graph.add(target, origin)
    try:
        graph.prepare()
    except CycleError as error:
        cycle = error.args[1]
        place = at.items()[edges.index((cycle[0], cycle[1]))]
        raise place.wrong(f"is part of a cycle: {' → '.join(cycle)}", "remove one of the cycle's edges") from None


def _capacities(at: JsonPlace, hosts: int) -> tuple[Fraction, ...]:
    if not isinstance(at.value, list):
        return (at.above_zero(),) * hosts
    if len(at.value) != hosts:
        raise at.wrong(f"has {len(at.value)} capacities for {hosts} hosts", "give one number, or one for each host")
    return tuple(item.above_zero() for item in at.items())


def read_placement(at: JsonPlace, pes: Sequence[str], hosts: int, replicas: int) -> tuple[tuple[int, ...], ...] | None:
    """The hosts of each PE's replicas; none where the value is null."""
    if at.value is None:
        return None
    rows = at.items()
    if len(rows) != len(pes):
        raise at.wrong(f"has {len(rows)} entries for {len(pes)} PEs", "give one list of hosts for each PE, in order")
    placement: list[tuple[int, ...]] = []
    for row, pe in zip(rows, pes, strict=True):
        chosen: list[int] = []
        if len(row.items()) != replicas:
            raise row.wrong(
                f"has {len(row.items())} hosts for {replicas} replicas of '{pe}'", "give one host for each replica"
            )
        for item in row.items():
            host = item.whole(0)
            if host >= hosts:
                raise item.wrong(f"there is no host {host}", f"hosts are numbered from 0 to {hosts - 1}")
            # Fewer hosts than replicas leave no choice.
            if host in chosen and hosts >= replicas:
                raise item.wrong(f"two replicas of '{pe}' are on host {host}", "put each replica on a different host")
            chosen.append(host)
        placement.append(tuple(chosen))
    return tuple(placement)


def _plain(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)


def _share(number: Fraction) -> int | float | str:
    """As a number where that is exact, else as a fraction."""
    plain = _plain(number)
    return plain if Fraction(repr(plain)) == number else str(number)
