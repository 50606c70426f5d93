"""Stage timeouts: how long a response may take in a stage by the limits of its task's verifier. Pure.

This is T_j of plans (DistRS section 5.1). It is not the limit by which a worker that hangs is found
(`Pipelines.limit_s`): that one is several times as long. Programs have processor time, and twice as long
on the clock, which only one that sleeps uses. Plans have the processor time: with the double T_j fewer items
could queue, and every batch would pay workers for a rare program, which delays its batch by one T_j at most.
Services and judges have time on the clock.
"""

from gleaner.actors.reward.verifiers.registry import CODE, HTTP, JUDGE, PYTHON, is_compiled, name_of
from gleaner.configs.schema import Reward, Task

COMPILE_S = 10.0
"""Of a task that gives no `compile_s`, as in `CompiledParams`."""


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
    return _param_s(task, "deadline_s", sections.get(name, reward.deadline_s))


def compile_s(task: Task) -> float:
    """The compilation of a program."""
    return _param_s(task, "compile_s", COMPILE_S)


def run_s(task: Task, reward: Reward) -> float:
    """A program that was compiled: what the compilation leaves of `reward.deadline_s`, or the task's own."""
    left_s = reward.deadline_s - compile_s(task)
    return _param_s(task, "deadline_s", left_s if left_s > 0 else reward.deadline_s)


def _param_s(task: Task, name: str, default_s: float) -> float:
    """A time among the verifier's parameters. One that is no time is refused where the verifier is made."""
    given = task.params.get(name, default_s)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
        return default_s
    return float(given)
