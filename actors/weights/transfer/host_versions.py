"""HostVersions: the versions that a host has, as images, as offers and as deltas."""

from dataclasses import dataclass

from gleaner.actors.weights.delta.service import ServedDeltas
from gleaner.actors.weights.image.port import Images
from gleaner.actors.weights.transfer.version_index import VersionIndex


@dataclass(frozen=True, slots=True)
class HostVersions:
    """What every part of TransferAgent that publishes works on.

    Args:
        images: the store in shared memory.
        served: the versions that the bulk server offers.
        deltas: those between versions that are here.
    """

    images: Images
    served: VersionIndex
    deltas: ServedDeltas
