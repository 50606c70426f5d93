"""ManagerSettings: the sections of the settings that RolloutManager and its parts read."""

from dataclasses import dataclass

from gleaner.configs.schema import Ablation, Engine, Limits, Reward, Rollout
from gleaner.configs.section_group import Sections


@dataclass(frozen=True, slots=True)
class ManagerSettings(Sections):
    """Sections `rollout`, `engine` (longest prompt), `reward` (health of the verifier), `limits` and
    `ablation`."""

    rollout: Rollout
    engine: Engine
    reward: Reward
    limits: Limits
    ablation: Ablation
