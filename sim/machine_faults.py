"""MachineFaults: what is wrong now with the engines and the trainer of a simulated cluster."""

from dataclasses import dataclass, field

from gleaner.sim.models.engine_faults import EngineFaults


@dataclass(slots=True)
class MachineFaults:
    """engines: garbage that they must return. trainer_pace: how many times as long its work takes."""

    engines: EngineFaults = field(default_factory=EngineFaults)
    trainer_pace: float = 1.0
