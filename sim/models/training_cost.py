"""TrainingCost: time of micro-batches by FLOPs, of the optimizer by bytes.

Owns the analytic model of training. Pure.

A forward pass costs 2 FLOPs a parameter and token, a backward pass twice that; recomputed activations,
log-probs of the old policy and those of a reference model cost a forward pass each. Attention over the
sample's own tokens (half a square of them) is added. FLOPs are divided by the assumed utilisation.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.shapes import ModelShape

STATE_BYTES_PER_PARAMETER = 12.0
"""Size of the state in a host copy: weights and two moments, float32."""
OPTIMIZER_BYTES_PER_PARAMETER = 32.0
"""Moved by one AdamW step: gradient read, weights and both moments read and written, float32 (28), and the
copy of the weights for the next forward pass (2 written, 2 read)."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Computation for a sample, in forward passes. The default is that of this project's trainer."""

    recompute: bool = False
    old_logprobs: bool = False
    reference: bool = False

    @property
    def forwards(self) -> float:
        """Forward passes that cost as much as all of it: 3, and one more for each of the three."""
        return 3.0 + self.recompute + self.old_logprobs + self.reference


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Coefficients of a trainer; seconds per token, per pair of tokens, per micro-batch and per step.

    copy_s: of one copy of the state to the host's memory; publish_s: of one image of the weights.
    """

    token_s: float
    pair_s: float
    micro_batch_s: float
    step_s: float
    copy_s: float
    publish_s: float

    def micro_batch(self, lengths: Iterable[float]) -> float:
        """Seconds for samples of these lengths (prompt and response, tokens)."""
        tokens = pairs = 0.0
        for length in lengths:
            tokens += length
            pairs += length * length / 2
        return self.micro_batch_s + tokens * self.token_s + pairs * self.pair_s


def training_cost(
    shape: ModelShape, host_devices: HostDevices, passes: Passes | None = None, *, offload: bool = False
) -> TrainingCost:
    """The coefficients of a model on all devices of a rig. `offload`: the moments live in host memory and
    cross the host link twice a step."""
    device, assumed, parameters = host_devices.device, host_devices.assumptions, shape.parameters
    forwards = (passes or Passes()).forwards
    flops = device.flops * assumed.training_mfu * host_devices.devices
    memory = device.memory_bytes_per_s * assumed.decode_bandwidth * host_devices.devices
    link = device.host_link_bytes_per_s * assumed.host_link_efficiency * host_devices.devices
    moments_s = 2 * 8.0 * parameters / link if offload else 0.0
    return TrainingCost(
        token_s=forwards * shape.flops_per_token / flops,
        pair_s=forwards * shape.attention_flops_per_pair / flops,
        micro_batch_s=assumed.micro_batch_overhead_s,
        step_s=OPTIMIZER_BYTES_PER_PARAMETER * parameters / memory + moments_s,
        copy_s=STATE_BYTES_PER_PARAMETER * parameters / link,
        publish_s=shape.weight_bytes / link,
    )
