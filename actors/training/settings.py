"""Sections of the settings that the trainer, the processes that compute, and the loop of a job read."""

from dataclasses import dataclass

from gleaner.configs.schema import Fleet, Job, Liveness, Rollout, Seeding, Training
from gleaner.configs.section_group import Sections


@dataclass(frozen=True, slots=True)
class TrainerSettings(Sections):
    """Sections `job` (whether it is exact), `rollout` (staleness, deadlines), `seeding` (stairs), `training`
    and `liveness`."""

    job: Job
    rollout: Rollout
    seeding: Seeding
    training: Training
    liveness: Liveness


@dataclass(frozen=True, slots=True)
class LoopSettings(Sections):
    """Sections `job` (steps, evaluations), `rollout` (prompts, staleness) and `fleet`."""

    job: Job
    rollout: Rollout
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class ComputeSettings(Sections):
    """Sections `training`, `rollout` (temperature of the responses) and `seeding` (stairs), for one process
    that computes."""

    training: Training
    rollout: Rollout
    seeding: Seeding
