"""BuiltinSettings: the sections of the settings that the host of the builtin engine reads."""

from dataclasses import dataclass

from gleaner.configs.schema import Engine, Job, Rollout
from gleaner.configs.section_group import Sections


@dataclass(frozen=True, slots=True)
class BuiltinSettings(Sections):
    """Sections `engine`, `rollout` (longest response) and `job` (whether it is exact)."""

    engine: Engine
    rollout: Rollout
    job: Job
