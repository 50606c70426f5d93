"""RewardSettings: the sections of the settings that RewardProxy and its workers read."""

from dataclasses import dataclass

from gleaner.configs.schema import Job, Reward, Task
from gleaner.configs.section_group import Sections


@dataclass(frozen=True, slots=True)
class RewardSettings(Sections):
    """Sections `job` (the seed of the problems), `task` (one for each task) and `reward`."""

    job: Job
    task: tuple[Task, ...]
    reward: Reward
