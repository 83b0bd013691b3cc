"""Which sources are silent, and for how long: windows do not wait for those that were declared with `idle`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.engine.epoch_input import Taken
from holdfast.epoch.plan import EpochPlan
from holdfast.graph.nodes import SourceNode
from holdfast.plan.program import Program
from holdfast.plan.watermarks import Following, followed_by

__all__ = ["SilentSources", "followed_in"]


class SilentSources:
    """Follows the looks of one run at its sources, and the plans it finds, from `began` on. A run knows nothing of the
    silence before it."""

    def __init__(self, program: Program, began: float) -> None:
        self._program = program
        self._heard = {node.name: began for node in program.sources if node.idle is not None}

    def after(self, now: float, taken: Taken | None) -> list[SourceNode]:
        """The sources that have given nothing for as long as they may, after a look at all of them."""
        if not self._heard:
            return []
        silent = []
        for node in self._program.sources:
            if node.idle is None:
                continue
            given = taken is not None and (any(taken.slices[node.name]) or taken.open.get(node.name))
            if not given and now - self._heard[node.name] >= node.idle:
                silent.append(node)
        return silent

    def planned(self, now: float, plan: EpochPlan) -> None:
        """An epoch was planned, by whichever host: the sources that it reads were heard."""
        for name in self._heard:
            if any(plan.slices[name]) or plan.open.get(name):
                self._heard[name] = now


def followed_in(
    program: Program, silent: Iterable[SourceNode], done: Mapping[str, bool], greatest: Mapping[str, int | None]
) -> Following:
    """The idle ones of some silent sources, and those that their watermarks follow: all that are not silent or, where
    there are none, the one that has come farthest. Sources that have ended hold nothing up, and nothing follows
    them."""
    quiet = [node for node in silent if not done.get(node.name)]
    names = {node.name for node in quiet}
    active = [node.name for node in program.sources if node.name not in names and not done.get(node.name)]
    found: dict[str, Mapping[str, int]] = {}
    for node in quiet:
        others = followed_by(program, node, active)
        if not others:
            fellows = followed_by(program, node, names)
            reached = {name: time + fellows[name] for name in fellows if (time := greatest.get(name)) is not None}
            farthest = max(reached, key=reached.__getitem__, default=None)
            others = {} if farthest is None else {farthest: fellows[farthest]}
        if others:
            found[node.name] = others
    return found
