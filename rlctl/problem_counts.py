"""Problem counts of a job's own data, set in its settings before it starts.

A job draws problems by number without reading them, so the counts are part of its settings (`config.toml` of
a run), and a resume draws the same ones.
"""

import msgspec

from gleaner.actors.reward.data import DataProblems
from gleaner.actors.reward.source import BadTask
from gleaner.configs.schema import Config, Task

MOST_HELDOUT = 1024
"""Of a file of held-out problems, where the settings give no number: each evaluation runs them all."""


def counted(config: Config) -> Config:
    """The settings with the number of problems of each task that has data. Reads every row. Raises `BadTask`,
    which names the file and the line."""
    if not any(task.data for task in config.task):
        return config
    tasks = tuple(_counted(task, config.job.seed) if task.data else task for task in config.task)
    return msgspec.structs.replace(config, task=tasks)


def _counted(task: Task, seed: int) -> Task:
    found = DataProblems(task, seed)
    train, heldout = found.count("train"), found.count("heldout")
    if task.train_problems > train:
        raise BadTask(
            f"task {task.name}: train_problems: expected at most {train}, which {task.data} has beside the "
            f"held-out ones, got {task.train_problems}"
        )
    if task.heldout_problems > heldout:
        where = task.heldout_data or f"{task.data}, a tenth of it,"
        raise BadTask(
            f"task {task.name}: heldout_problems: expected at most {heldout}, which {where} gives, got "
            f"{task.heldout_problems}"
        )
    return msgspec.structs.replace(
        task,
        train_problems=task.train_problems or train,
        heldout_problems=task.heldout_problems or min(heldout, MOST_HELDOUT),
    )
