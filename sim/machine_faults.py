"""MachineFaults: what is wrong now with the engines and the trainer of a simulated cluster."""

from dataclasses import dataclass, field

from gleaner.sim.models.engine_faults import EngineFaults
from gleaner.sim.slowness import Slowness


@dataclass(slots=True)
class MachineFaults:
    """trainer: slowness of its work. engines: garbage that they must return."""

    trainer: Slowness
    engines: EngineFaults = field(default_factory=EngineFaults)
