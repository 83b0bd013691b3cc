"""Mixed-integer programs, built row by row and solved by HiGHS in one thread with tight tolerances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from holdfast.connect.extra_library import require_library

if TYPE_CHECKING:
    import highspy

__all__ = ["TOLERANCE", "IntegerProgram", "Relaxation", "SolverEnd", "SolverOutcome", "highs"]

TOLERANCE = 1e-9
"""Of rows, of integrality and, relatively, of optimality. Programs leave rows this much room, and verify later."""
_LEAST = 1e-12  # HiGHS takes what is not above this for 0, and by itself what is not above 1e-9


@cache
def highs() -> ModuleType:
    """The solver, which is an extra, or an error that says how to get it."""
    require_library("highspy", "laar", "choosing which replicas are active")
    import highspy  # noqa: PLC0415 - an extra

    return highspy


class SolverEnd(Enum):
    """How the solver ended."""

    OPTIMAL = auto()
    INFEASIBLE = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class SolverOutcome:
    """What a solver found: the best values if there are any, their objective, and a lower bound of it."""

    end: SolverEnd
    values: NDArray[np.float64] | None
    objective: float
    bound: float
    duals: NDArray[np.float64] | None = None


class IntegerProgram:
    """A minimisation over variables from 0 to an upper bound."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._whole: list[bool] = []
        self._starts = [0]
        self._index: list[int] = []
        self._value: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []
        self._impossible = False  # a row without terms says so; HiGHS would take no notice

    def variable(self, cost: float = 0.0, upper: float = 1.0, whole: bool = False) -> int:
        self._costs.append(cost)
        self._upper.append(upper)
        self._whole.append(whole)
        return len(self._costs) - 1

    def row(self, terms: Mapping[int, float], low: float = -math.inf, high: float = math.inf) -> int:
        """low ≤ Σ value · variable ≤ high. Terms too small for the solver become room in the row."""
        small = {variable: value for variable, value in terms.items() if abs(value) <= _LEAST}
        if small:
            terms = {variable: value for variable, value in terms.items() if variable not in small}
            low -= sum(value * self._upper[variable] for variable, value in small.items() if value > 0)
            high -= sum(value * self._upper[variable] for variable, value in small.items() if value < 0)
        self._impossible |= not terms and (low > 0 or high < 0)
        self._index.extend(terms.keys())
        self._value.extend(terms.values())
        self._starts.append(len(self._index))
        self._low.append(low)
        self._high.append(high)
        return len(self._low) - 1

    def reward(self, variable: int, value: float) -> None:
        """What a variable brings is taken off the objective."""
        self._costs[variable] -= value

    def forbid(self, variable: int) -> None:
        """Fixes a variable to 0."""
        self._upper[variable] = 0.0

    def require(self, variables: Iterable[int | None]) -> None:
        """Fixes variables to 1."""
        for variable in variables:
            if variable is not None:
                self.row({variable: 1.0}, low=1.0)

    def make_whole(self, variables: Iterable[int]) -> None:
        for variable in variables:
            self._whole[variable] = True

    def solve(
        self,
        time_limit: float,
        *,
        relaxed: bool = False,
        start: Mapping[int, float] | None = None,
        gap: float = TOLERANCE,
        stop: Event | None = None,
    ) -> SolverOutcome:
        """The optimum, or the best within the time limit; of the linear relaxation on request. `start` are values of
        some variables from which the solver tries to make a first solution. `stop`, set by another thread, ends a
        search soon as if the time was over."""
        if self._impossible:
            return SolverOutcome(SolverEnd.INFEASIBLE, None, math.inf, math.inf)
        if time_limit <= 0:
            return SolverOutcome(SolverEnd.TIME, None, math.inf, -math.inf)
        if not self._costs:
            return SolverOutcome(SolverEnd.OPTIMAL, np.zeros(0), 0.0, 0.0)
        solver = self._solver(time_limit, relaxed, gap)
        if start:
            index = np.fromiter(start.keys(), dtype=np.int32)
            solver.setSolution(len(start), index, np.fromiter(start.values(), dtype=np.float64))
        if stop is not None:
            solver.cbMipInterrupt += lambda event: event.interrupt(stop.is_set())
        solver.run()
        return self._outcome(solver, mixed=any(self._whole) and not relaxed)

    def _solver(self, time_limit: float, relaxed: bool, gap: float) -> highspy.Highs:
        solver: highspy.Highs = highs().Highs()
        options: dict[str, bool | int | float | str] = {
            "output_flag": False,
            "threads": 1,
            "parallel": "off",
            "time_limit": float(time_limit),
            "mip_feasibility_tolerance": TOLERANCE,
            "primal_feasibility_tolerance": TOLERANCE,
            "dual_feasibility_tolerance": TOLERANCE,
            "small_matrix_value": _LEAST,
            "mip_rel_gap": gap,
            "mip_abs_gap": 0.0,
            # Most of the proof is in the tree: restarts, sub-problems and cuts at nodes cost more than they bring.
            "mip_allow_restart": False,
            "mip_heuristic_effort": 0.01,
            "mip_heuristic_run_root_reduced_cost": False,
            "mip_allow_cut_separation_at_nodes": False,
        }
        for option, value in options.items():
            solver.setOptionValue(option, value)
        solver.passModel(self._lp(relaxed))
        return solver

    def _lp(self, relaxed: bool) -> highspy.HighsLp:
        lp: highspy.HighsLp = highs().HighsLp()
        lp.num_col_ = len(self._costs)
        lp.num_row_ = len(self._low)
        lp.col_cost_ = np.array(self._costs, dtype=np.float64)
        lp.col_lower_ = np.zeros(len(self._costs))
        lp.col_upper_ = np.array(self._upper, dtype=np.float64)
        lp.row_lower_ = np.array(self._low, dtype=np.float64)
        lp.row_upper_ = np.array(self._high, dtype=np.float64)
        lp.a_matrix_.format_ = highs().MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self._starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self._index, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self._value, dtype=np.float64)
        if not relaxed:
            kinds = highs().HighsVarType.kContinuous, highs().HighsVarType.kInteger
            lp.integrality_ = [kinds[whole] for whole in self._whole]
        return lp

    def _outcome(self, solver: highspy.Highs, mixed: bool) -> SolverOutcome:
        status, info = solver.getModelStatus(), solver.getInfo()
        found = info.primal_solution_status == int(highs().SolutionStatus.kSolutionStatusFeasible)
        solution = solver.getSolution()
        values = np.array(solution.col_value) if found else None
        duals = np.array(solution.row_dual) if found and not mixed else None
        objective = info.objective_function_value if found else math.inf
        if status in (highs().HighsModelStatus.kInfeasible, highs().HighsModelStatus.kUnboundedOrInfeasible):
            return SolverOutcome(SolverEnd.INFEASIBLE, None, math.inf, math.inf)
        if status == highs().HighsModelStatus.kOptimal and found:
            return SolverOutcome(
                SolverEnd.OPTIMAL, values, objective, info.mip_dual_bound if mixed else objective, duals
            )
        return SolverOutcome(SolverEnd.TIME, values, objective, info.mip_dual_bound if mixed else -math.inf)


class Relaxation:
    """The linear relaxation of a program as it is now, solved again and again with other bounds of variables: each time
    from where the last one ended."""

    def __init__(self, program: IntegerProgram) -> None:
        self._program = program
        self._solver = program._solver(math.inf, relaxed=True, gap=TOLERANCE)

    def bound(self, variable: int, low: float, high: float) -> None:
        self._solver.changeColBounds(variable, low, high)

    def solve(self) -> SolverOutcome:
        self._solver.run()
        return self._program._outcome(self._solver, mixed=False)
