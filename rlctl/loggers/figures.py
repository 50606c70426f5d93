"""Figures of a history that a logger shows, with their names.

Pure. Names are `group/name`, with the unit where there is one. The x axis is the step for figures of steps
and evaluations, and seconds of the run for figures of polls of the fleet.
"""

from dataclasses import dataclass
from typing import Literal

from gleaner.actors.training.records import AnyRecord, End, Eval, Sample, Step

NOT_FIGURES = frozenset({"t_s", "step"})


@dataclass(frozen=True, slots=True)
class Figures:
    """`values` by name at `at`: the step, or for `over` = "seconds" whole seconds of the run. t_s: when, in
    seconds of the run."""

    over: Literal["step", "seconds"]
    at: int
    t_s: float
    values: dict[str, float]


def figures_of(record: AnyRecord) -> Figures | None:
    """The figures of one record; None where it has none (a host joined, an actor was restarted)."""
    match record:
        case Step():
            return Figures("step", record.step, record.t_s, _numbers(record, "train"))
        case Eval():
            values = {"eval/problems": float(record.problems)}
            if record.reward is not None:
                values["eval/reward"] = record.reward
            for name, reward in record.tasks.items():
                if reward is not None:
                    values[f"eval/reward/{name}"] = reward
            return Figures("step", record.step, record.t_s, values)
        case Sample():
            return Figures("seconds", round(record.t_s), record.t_s, _numbers(record, "fleet"))
        case End():
            values = _numbers(record, "run")
            return Figures("seconds", round(record.t_s), record.t_s, values)
        case _:
            return None


def _numbers(record: Step | Sample | End, group: str) -> dict[str, float]:
    """Every numeric field, so that a new field needs no entry here."""
    found: dict[str, float] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if name not in NOT_FIGURES and isinstance(value, int | float):
            found[f"{group}/{name}"] = float(value)
    if isinstance(record, Sample):
        found |= {f"{group}/verdicts_{status}": float(count) for status, count in record.verdicts.items()}
    return found
