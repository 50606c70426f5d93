"""TransferSettings: the sections of the settings that TransferAgent and its parts read."""

from dataclasses import dataclass

from gleaner.configs.schema import Training, Weights
from gleaner.configs.section_group import Sections


@dataclass(frozen=True, slots=True)
class TransferSettings(Sections):
    """Sections `weights` and `training` (whether the job has a trainer of its own)."""

    weights: Weights
    training: Training
