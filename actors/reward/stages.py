"""Stages: what the items of a job pass one after the other, and which of them each task has. Pure.

An item has one stage, `score`, unless the settings separate them (`[reward.stages]`): then a program of a
compiled language is compiled in one stage and run in the next, and a judge beside a verifier has a stage of
its own (DistRS section 4). Each stage has workers, hosts and costs of its own.
"""

from collections.abc import Sequence

from gleaner.actors.reward import stage_timeouts
from gleaner.actors.reward.mixture import Mixture
from gleaner.actors.reward.planning.items import Stage
from gleaner.actors.reward.verifiers.registry import CODE, is_compiled
from gleaner.configs.schema import Reward, StageWorkers, Task, shares_of

SCORE, COMPILE, RUN, JUDGE = "score", "compile", "run", "judge"
ALL = (SCORE, COMPILE, RUN, JUDGE)
"""In the order in which items pass them."""


def pipeline_of(task: Task, *, staged: bool) -> tuple[str, ...]:
    """The stages of a task's items. staged: whether the settings have stages."""
    if not staged:
        return (SCORE,)
    compiled = task.verifier == CODE and is_compiled(task.params)
    own = (COMPILE, RUN) if compiled else (SCORE,)
    return (*own, JUDGE) if task.judge.weight else own


class Pipelines:
    """The stages of the items of each task."""

    def __init__(self, tasks: Sequence[Task], reward: Reward) -> None:
        self._reward, self._tasks = reward, list(tasks)
        self._by_task = [pipeline_of(task, staged=reward.stages.separate) for task in tasks]
        self._by_name = {task.name: stages for task, stages in zip(tasks, self._by_task, strict=True)}
        training = Mixture(shares_of(tasks))
        self._mixtures = {"heldout": Mixture(shares_of(tasks, heldout=True))}
        self._training = training

    @property
    def names(self) -> list[str]:
        """The stages that some task has, in their order."""
        return [name for name in ALL if any(name in stages for stages in self._by_task)]

    @property
    def stages(self) -> list[Stage]:
        """The same, for plans."""
        return [Stage(name, self._of(name).cost, self.timeout_s(name)) for name in self.names]

    def timeout_s(self, name: str) -> float:
        """T_j of plans: the longest time that the limits of the tasks allow an item in a stage."""
        reward = self._reward
        if reward.share.with_:
            return reward.share.deadline_s
        if name == JUDGE:
            return reward.judge.deadline_s
        return max(
            self._task_s(task, name)
            for task, stages in zip(self._tasks, self._by_task, strict=True)
            if name in stages
        )

    def _task_s(self, task: Task, name: str) -> float:
        if name == COMPILE:
            return stage_timeouts.compile_s(task)
        if name == RUN:
            return stage_timeouts.run_s(task, self._reward)
        together = task.judge.weight and not self._reward.stages.separate
        judge_s = self._reward.judge.deadline_s if together else 0.0
        return stage_timeouts.own_s(task, self._reward) + judge_s

    def limit_s(self, name: str) -> float:
        """Time limit of a worker for one item in a stage; a worker that hangs is found by it. Longer than
        `timeout_s`: it has the waits of a busy host, and what the worker does around the item."""
        reward = self._reward
        if not reward.stages.separate:
            return reward.worker_s
        return reward.judge_s if name == JUDGE else reward.own_s

    def workers(self) -> dict[str, int]:
        """Worker processes of each stage on the head's host; stages without any are left out."""
        if not self._reward.stages.separate:
            return {SCORE: self._reward.workers}
        return self._some({name: self._of(name).workers for name in self.names})

    def host_workers(self, cores: int) -> dict[str, int]:
        """The same on each reward host, which has so many cores."""
        if not self._reward.stages.separate:
            return {SCORE: self._reward.host_workers or cores}
        return self._some({name: self._of(name).host_workers for name in self.names})

    def _of(self, name: str) -> StageWorkers:
        found = getattr(self._reward.stages, name)
        assert isinstance(found, StageWorkers)
        return found

    @staticmethod
    def _some(workers: dict[str, int]) -> dict[str, int]:
        return {name: count for name, count in workers.items() if count}

    def problem(self) -> str:
        """Why the workers of these settings cannot score the items, "" if they can."""
        if not self._reward.stages.separate:
            return ""
        for name in self.names:
            if not self._of(name).workers and not self._of(name).host_workers:
                return (
                    f"reward.stages.{name}: no host has a worker of this stage; set workers, for the head's "
                    "host, or host_workers, for each reward host, above 0"
                )
        if not self.workers():
            names = ", ".join(f"reward.stages.{name}.workers" for name in self.names)
            return f"{names}: one of them must be above 0: the head's host gives the problems"
        return ""

    def of_problem(self, split: str, index: int) -> tuple[str, ...]:
        """The stages of a response to a problem of the job."""
        if len(self._by_task) == 1:
            return self._by_task[0]
        return self._by_task[self._mixtures.get(split, self._training).place(index)[0]]

    def of_task(self, name: str) -> tuple[str, ...]:
        """The stages of a response to a problem of a task; those of the first task for an unknown one."""
        return self._by_name.get(name, self._by_task[0])
