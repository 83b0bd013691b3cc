"""What checkpoint policies ask about a fragment, answered from its program."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.plan.footprint_streams import check_eventual, log_name
from holdfast.plan.program import Program

__all__ = ["ProgramFacts"]


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The `FragmentFacts` of a program, run where all tasks see the same volatile tier, or not."""

    program: Program
    shared: bool = True

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def reads_again(self) -> bool:
        """Structured Streaming gives a batch once."""
        return self.program.spark_input is None

    def footprint_streams(self) -> dict[str, str]:
        check_eventual(self.program)
        return {node.name: log_name(self.program, node.name) for node in self.program.stateful}
