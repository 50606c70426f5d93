"""HostDevices: devices of a host, and how an engine spreads a model over them.

Owns the value and its check. Figures are in `hardware`, times in `engine_cost` and its neighbours.
"""

from dataclasses import dataclass

from gleaner.sim.models.hardware import Assumptions, Device, assumptions, device


@dataclass(frozen=True, slots=True)
class HostDevices:
    """`devices` devices of one kind; each `tp` of them hold one copy of the model and serve together.

    An instance of `devices / tp` copies takes requests as one engine and spreads them evenly. `assumed`
    replaces what `hardware.toml` assumes of the device. Raises `ValueError`, `UnknownHardware`.
    """

    name: str
    devices: int = 1
    tp: int = 1
    assumed: Assumptions | None = None

    def __post_init__(self) -> None:
        device(self.name)
        if self.tp < 1 or self.devices < 1 or self.devices % self.tp:
            raise ValueError(f"{self.devices} devices cannot be cut into groups of {self.tp}")

    @property
    def device(self) -> Device:
        return device(self.name)

    @property
    def assumptions(self) -> Assumptions:
        return assumptions(self.name) if self.assumed is None else self.assumed

    @property
    def replicas(self) -> int:
        """Copies of the model that serve side by side."""
        return self.devices // self.tp
