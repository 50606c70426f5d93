"""Expected responses of modelled engines, from a request's seed and its weights.

Owns the weights that were published in a run, by their root, as far as their images were observed.
"""

import logging

from gleaner.sim.models.job_model import JobModel
from gleaner.sim.models.tokens import response
from gleaner.sim.models.weight_bytes import BrokenImage, weights_of

log = logging.getLogger("chaos")


class Responses:
    """See the module. `of` is a `samples.ResponseOf`."""

    def __init__(self, job_model: JobModel) -> None:
        self._vocabulary = job_model.shape.vocabulary
        self._follow = job_model.tokens_follow_weights
        self._weights: dict[bytes, bytes] = {}

    def published(self, root: bytes, image: bytes) -> None:
        """This image was published under this root."""
        try:
            self._weights.setdefault(root, weights_of(image))
        except BrokenImage as problem:
            log.warning("published under %s: %s", root.hex()[:12], problem)

    def of(self, seed: int, root: bytes, count: int) -> bytes | None:
        """The first `count` tokens of a response, u32; None for weights whose publication was not
        observed."""
        weights = self._weights.get(root) if self._follow else b""
        if weights is None:
            return None
        return response(seed, count, self._vocabulary, weights).tobytes()
