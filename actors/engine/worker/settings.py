"""WorkerSettings: the sections of the settings that RolloutWorker and its parts read."""

from dataclasses import dataclass

from gleaner.configs.schema import Engine, Limits, Liveness
from gleaner.configs.section_group import Sections


@dataclass(frozen=True, slots=True)
class WorkerSettings(Sections):
    """Sections `engine`, `limits` (frames that the stream keeps) and `liveness`."""

    engine: Engine
    limits: Limits
    liveness: Liveness
