"""Transfer times of weights and state: pulls, loads into engines, durable writes.

Owns the arithmetic of bytes over bandwidth. Pure. The time of a pull in a simulated run follows from the
simulated network, with the declared size of an image (`declared_scale`); `pull_s` is the expected time on an
idle link.
"""

from gleaner.sim.models.host_devices import HostDevices
from gleaner.sim.models.shapes import ModelShape


def pull_s(shape: ModelShape, host_devices: HostDevices, network_bytes_per_s: float) -> float:
    """Seconds to pull one version of the weights over an idle network link of this rate."""
    return shape.weight_bytes / (network_bytes_per_s * host_devices.assumptions.network_efficiency)


def load_s(shape: ModelShape, host_devices: HostDevices) -> float:
    """Seconds to load weights from host memory into an engine. Each device takes its share over its own link;
    copies of the model load side by side."""
    assumed = host_devices.assumptions
    link = host_devices.device.host_link_bytes_per_s * assumed.host_link_efficiency
    return assumed.load_overhead_s + shape.weight_bytes / host_devices.tp / link


def durable_write_s(size_bytes: float, host_devices: HostDevices) -> float:
    """Seconds to bring `size_bytes` to the host's disk."""
    return size_bytes / host_devices.assumptions.disk_bytes_per_s


def declared_scale(shape: ModelShape, image_bytes: int) -> float:
    """How many bytes of the modelled weights one byte of a simulated image represents."""
    return shape.weight_bytes / image_bytes
