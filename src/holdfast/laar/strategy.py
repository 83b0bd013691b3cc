"""The replica activation strategy: which replicas run in which input configuration, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import DescriptorError
from holdfast.laar.descriptor import Descriptor, read_placement
from holdfast.laar.json_reader import JsonPlace, parse

__all__ = ["NamedActivations", "Placement", "Strategy", "load_strategy", "read_strategy", "static_strategy"]

Placement = tuple[tuple[int, ...], ...]

NamedActivations = Mapping[str, tuple[tuple[int, ...], ...]]
"""By the names of configurations: which replicas of each PE run, PEs in the order of the descriptor."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """`active[c][i][r]` is 1 if replica r of PE i runs in configuration c; `placement[i][r]` is its host."""

    active: tuple[tuple[tuple[int, ...], ...], ...]
    placement: Placement

    def named(self, descriptor: Descriptor) -> NamedActivations:
        return {config.name: active for config, active in zip(descriptor.configs, self.active, strict=True)}


def static_strategy(descriptor: Descriptor, placement: Placement) -> Strategy:
    """Static replication: every replica runs all the time."""
    active = tuple((1,) * descriptor.replicas for _ in descriptor.pes)
    return Strategy((active,) * len(descriptor.configs), placement)


def load_strategy(path: Path, descriptor: Descriptor) -> Strategy:
    """The strategy in a file; what `holdfast laar solve --json` prints as its last line is one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DescriptorError(f"cannot read {path}: {error}", cure="give a readable JSON file") from None
    return read_strategy(text, descriptor)


def read_strategy(said: str, descriptor: Descriptor) -> Strategy:
    """A strategy in JSON, checked against the descriptor's names and sizes, not against its limits."""
    top = parse(said, "the strategy")
    at = top.field("strategy")
    if at.value is None:
        status = top.field("status", "unknown").value
        raise at.wrong(f"there is none: the status is '{status}'", "lower ic_target, or solve with more time")
    known = {config.name for config in descriptor.configs}
    for name, place in at.entries():
        if name not in known:
            raise place.wrong(f"there is no configuration '{name}'", f"the descriptor has: {', '.join(sorted(known))}")
    active = tuple(_rows(at.field(config.name), descriptor) for config in descriptor.configs)
    return Strategy(active, _placement(top, descriptor))


def _rows(at: JsonPlace, descriptor: Descriptor) -> tuple[tuple[int, ...], ...]:
    rows = at.items()
    if len(rows) != len(descriptor.pes):
        raise at.wrong(f"has {len(rows)} entries for {len(descriptor.pes)} PEs", "give one for each PE, in order")
    found = []
    for row in rows:
        cells = row.items()
        if len(cells) != descriptor.replicas:
            raise row.wrong(f"has {len(cells)} entries for {descriptor.replicas} replicas", "give one for each replica")
        for cell in cells:
            if cell.value not in (0, 1) or not isinstance(cell.value, int):
                raise cell.wrong(f"is {cell.value!r}", "write 1 for an active replica and 0 for an idle one")
        found.append(tuple(int(cell.value) for cell in cells))
    return tuple(found)


def _placement(top: JsonPlace, descriptor: Descriptor) -> Placement:
    """The strategy's own placement, if finding one was part of the problem; else the descriptor's."""
    if top.has("placement"):
        own = read_placement(top.field("placement"), descriptor.pes, descriptor.hosts, descriptor.replicas)
        if own is not None:
            return own
    if descriptor.placement is None:
        raise top.field("placement").wrong("is null", "give the hosts of each PE's replicas")
    return descriptor.placement
