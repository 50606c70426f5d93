"""Stage timeouts: how long a response may take in a stage by the limits of its task's verifier. Pure.

This is T_j of plans (DistRS section 5.1). It is not the limit by which a worker that hangs is found
(`Pipelines.limit_s`): that one is several times as long. Programs have processor time, and twice as long
on the clock, which only one that sleeps uses. Plans have the processor time: with the double T_j fewer items
could queue, and every batch would pay workers for a rare program, which delays its batch by one T_j at most.
Services and judges have time on the clock.
"""

from gleaner.actors.reward.verifiers import compiled_times
from gleaner.actors.reward.verifiers.registry import CODE, HTTP, JUDGE, PYTHON, is_compiled, name_of
from gleaner.configs.schema import Reward, Task


def own_s(task: Task, reward: Reward) -> float:
    """All that the task's own verifier does: a compilation too, but no judge beside it."""
    name = name_of(task.verifier, task.data)
    sections = {
        PYTHON: reward.function.deadline_s,
        HTTP: reward.http.deadline_s,
        JUDGE: reward.judge.deadline_s,
    }
    if name == CODE and is_compiled(task.params):
        return compile_s(task) + run_s(task, reward)
    return _param_s(task, "deadline_s") or sections.get(name, reward.deadline_s)


def compile_s(task: Task) -> float:
    """The compilation of a program."""
    return _param_s(task, "compile_s") or compiled_times.COMPILE_S


def run_s(task: Task, reward: Reward) -> float:
    """A program that was compiled; all of `reward.deadline_s` where the compilation leaves none of it."""
    found_s = compiled_times.run_s(reward.deadline_s, compile_s(task), _param_s(task, "deadline_s"))
    return found_s if found_s > 0 else reward.deadline_s


def _param_s(task: Task, name: str) -> float | None:
    """A time among the verifier's parameters; None without one. What is no time, or not above 0, counts as
    none here: it is refused where the verifier is made."""
    given = task.params.get(name)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
        return None
    return float(given)
