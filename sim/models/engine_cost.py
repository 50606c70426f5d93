"""EngineCost: time of decode steps and prefill, and token capacity of the cache.

Owns the analytic model of inference. Pure. Its shape is the roofline, phase by phase:

    decode = max(read weights, matrix products) + max(read cache, attention) + all-reduces + overheads

Every term is linear in rows (requests decoded together) and context (their tokens in the cache), so a step
costs a few multiplications; `fit` finds the same coefficients from measured steps.

Left out: the time that requests of unequal context lose to imbalance inside a kernel, page sizes of the
cache, clocks that fall with the temperature, and the overlap of the scheduler with the device.
"""

from dataclasses import dataclass

from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.shapes import ModelShape


class DoesNotFit(ValueError):
    """The weights leave no space for a cache on these devices; the text has the number of missing bytes."""


@dataclass(frozen=True, slots=True)
class EngineCost:
    """Coefficients of one copy of the model; all in seconds, per step, row, token or pair of tokens.

    A row is a request in a decode step; context is the sum of the rows' tokens in the cache; a pair is one
    token that attends to one before it in prefill.
    """

    weights_s: float = 0.0
    row_products_s: float = 0.0
    context_read_s: float = 0.0
    context_attention_s: float = 0.0
    step_s: float = 0.0
    row_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_pair_s: float = 0.0
    prefill_s: float = 0.0

    def decode(self, rows: float, context: float) -> float:
        """Seconds of one decode step; 0 without a row."""
        if rows <= 0:
            return 0.0
        return (
            max(self.weights_s, rows * self.row_products_s)
            + context * max(self.context_read_s, self.context_attention_s)
            + self.step_s
            + rows * self.row_s
        )

    def prefill(self, tokens: float, pairs: float) -> float:
        """Seconds to fill the cache with `tokens` that attend to `pairs` of tokens; 0 without a token."""
        if tokens <= 0:
            return 0.0
        return self.prefill_s + tokens * self.prefill_token_s + pairs * self.prefill_pair_s


def engine_cost(shape: ModelShape, host_devices: HostDevices) -> EngineCost:
    """The coefficients of a model on a rig's devices, for one of its copies."""
    device, assumed, tp = host_devices.device, host_devices.assumptions, host_devices.tp
    bandwidth = device.memory_bytes_per_s * assumed.decode_bandwidth
    decode_flops = device.flops * assumed.decode_flops * tp
    prefill_flops = device.flops * assumed.prefill_flops * tp
    reduces = 2 * shape.layers if tp > 1 else 0
    reduced_bytes = shape.hidden * shape.bytes_per_weight * 2.0 * (tp - 1) / tp
    reduce_row_s = reduces * reduced_bytes / (device.link_bytes_per_s * assumed.link_efficiency)
    return EngineCost(
        weights_s=shape.active_parameters * shape.bytes_per_weight / tp / bandwidth,
        row_products_s=shape.flops_per_token / decode_flops,
        context_read_s=shape.kv_bytes_per_token_and_device(tp) / bandwidth,
        context_attention_s=shape.attention_flops_per_pair / decode_flops,
        step_s=assumed.step_overhead_s + reduces * assumed.allreduce_latency_s,
        row_s=assumed.request_overhead_s + reduce_row_s,
        prefill_token_s=shape.flops_per_token / prefill_flops + reduce_row_s,
        prefill_pair_s=shape.attention_flops_per_pair / prefill_flops,
        prefill_s=assumed.prefill_overhead_s + reduces * assumed.allreduce_latency_s,
    )


def kv_capacity_tokens(shape: ModelShape, host_devices: HostDevices) -> int:
    """Tokens that the cache of one copy of the model holds. Raises `DoesNotFit`."""
    assumed = host_devices.assumptions
    budget = host_devices.device.memory_bytes * assumed.memory_fraction - assumed.reserved_memory_bytes
    left = budget - shape.weight_bytes / host_devices.tp
    if left <= 0:
        raise DoesNotFit(
            f"{shape.weight_bytes:.3g} bytes of weights over "
            f"{host_devices.tp} x {host_devices.device.title}: each device "
            f"lacks {-left:.3g} bytes before its cache begins; raise tp or take a larger device"
        )
    return int(left / shape.kv_bytes_per_token_and_device(host_devices.tp))
