"""Launch: how the engine process of an instance is started."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Launch:
    """width: devices of one copy of the model, 0 as the settings have it. trial: the engine is not restarted
    within its process, which ends at its first failure."""

    width: int = 0
    trial: bool = False


USUAL: Final = Launch()
