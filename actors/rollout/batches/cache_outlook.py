"""`CacheOutlook`: whether half of the reserved engines have enough cache for what is left of a batch.

The stream trainer of RollPacker (arXiv 2509.21009, section 4.4, Algorithm 1) gives half of its engines to
training only if the others have space for the remaining requests at their largest. Owns the projection; it
reads the manager's state and changes nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.rollout.dispatch.remaining_length import RemainingLengths, codes_of
from gleaner.actors.rollout.fleet.instance_table import Instances
from gleaner.actors.rollout.journal.journaled_state import JournaledState
from gleaner.actors.rollout.state.request_log import RequestLog, RequestState
from gleaner.actors.rollout.state.token_log import Batch

Floats = NDArray[np.float64]

NEEDS_ENGINE = (RequestState.QUEUED, RequestState.DISPATCHED)


def peak_tokens(context: Floats, left: Floats) -> float:
    """The most tokens in the caches at a time, if requests with `context` tokens [n] each get one token a
    step until they have `left` [n] more, and then free their caches. 0 without a request."""
    if not len(context):
        return 0.0
    order = np.argsort(-left, kind="stable")
    together = np.cumsum(context[order]) + np.arange(1, len(order) + 1) * left[order]
    return float(together.max())


class CacheOutlook:
    """See the module. lengths: of responses that ended."""

    def __init__(self, journaled: JournaledState, instances: Instances, lengths: RemainingLengths) -> None:
        self._journaled, self._instances, self._lengths = journaled, instances, lengths

    def ended(self, batch: Batch) -> float:
        """The share of the batch's requests that need no engine any more."""
        logs = [log for group in batch.groups for log in group]
        return 1.0 - sum(log.state in NEEDS_ENGINE for log in logs) / max(1, len(logs))

    def half_fits(self, batch: Batch) -> bool:
        """Whether half of the reserved engines hold, at its peak, what waits or executes on them."""
        reserved = [one for one in self._instances.values() if one.kind == "reserved"]
        if not reserved:
            return False
        if not all(one.cache_tokens for one in reserved):
            return True  # their caches have space for all of their slots
        half_tokens = sum(one.engines * one.cache_tokens for one in reserved) / 2
        elsewhere = self._remote()
        left = [
            log
            for group in batch.groups
            for log in group
            if log.state in NEEDS_ENGINE and log.id not in elsewhere
        ]
        return self._peak(left, batch.submitted.kind) <= half_tokens

    def _peak(self, logs: Sequence[RequestLog], kind: str) -> float:
        slots = [log.slot for log in logs]
        made = self._journaled.state.log.columns.lengths(slots).astype(np.float64)
        limit = np.array([log.max_new_tokens for log in logs], np.float64)
        prompts = np.array([len(log.prompt) for log in logs], np.float64)
        kinds = np.repeat(codes_of([kind]), len(logs))
        return peak_tokens(prompts + made, self._lengths.expected(made, limit, kinds))

    def _remote(self) -> set[str]:
        """Requests that preemptible instances hold."""
        streams = self._journaled.state.streams
        return {
            ticket.request
            for one in self._instances.preemptible()
            if (stream := streams.alive(one.name, one.incarnation)) is not None
            for ticket in stream.live().values()
        }
