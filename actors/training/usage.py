"""`ResourceUsage`: host and device seconds of a run by price class, tokens, and price.

Owns the fields and their arithmetic; `account` makes them from records. Pure.
"""

import msgspec

from gleaner.configs.schema import Prices

HOUR_S = 3600.0


class ResourceUsage(msgspec.Struct, kw_only=True):
    """Use up to one moment, or between two. Seconds; `*_devices_s` are of GPUs, and of whole hosts that have
    none.

    parts_s: of reserved devices, by their use in the steps. busy_s: of preemptible devices that had requests;
    looked_s: of sampled ones. trained, collected, twice: tokens; wasted: tokens that no step was trained on,
    by cause.
    """

    elapsed_s: float = 0.0
    reserved_s: float = 0.0
    reserved_devices_s: float = 0.0
    preemptible_s: float = 0.0
    preemptible_devices_s: float = 0.0
    parts_s: dict[str, float] = {}
    busy_s: float = 0.0
    looked_s: float = 0.0
    steps: int = 0
    trained: int = 0
    collected: int = 0
    twice: int = 0
    wasted: dict[str, int] = {}

    def copy(self) -> "ResourceUsage":
        """A copy."""
        return msgspec.structs.replace(self, parts_s=dict(self.parts_s), wasted=dict(self.wasted))

    def since(self, then: "ResourceUsage") -> "ResourceUsage":
        """The use since an earlier moment of the same run."""
        return ResourceUsage(
            elapsed_s=self.elapsed_s - then.elapsed_s,
            reserved_s=self.reserved_s - then.reserved_s,
            reserved_devices_s=self.reserved_devices_s - then.reserved_devices_s,
            preemptible_s=self.preemptible_s - then.preemptible_s,
            preemptible_devices_s=self.preemptible_devices_s - then.preemptible_devices_s,
            parts_s={name: value - then.parts_s.get(name, 0.0) for name, value in self.parts_s.items()},
            busy_s=self.busy_s - then.busy_s,
            looked_s=self.looked_s - then.looked_s,
            steps=self.steps - then.steps,
            trained=self.trained - then.trained,
            collected=self.collected - then.collected,
            twice=self.twice - then.twice,
            wasted={cause: count - then.wasted.get(cause, 0) for cause, count in self.wasted.items()},
        )

    def cost(self, prices: Prices) -> tuple[float, float]:
        """The cost of the reserved and of the preemptible hosts, in the currency of the prices."""
        return (
            self.reserved_s / HOUR_S * prices.reserved_per_hour,
            self.preemptible_s / HOUR_S * prices.preemptible_per_hour,
        )
