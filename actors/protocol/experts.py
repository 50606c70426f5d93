"""ExpertRows: routed experts of each token, from an engine to a follower.

For mixture-of-experts models. Rows are no part of the token log: they bypass the manager and are sent at most
once. The requester holds them until it has answered. A lost row is computed again (`gateway.expert_rows`).
"""

import msgspec

from gleaner.actors.protocol.score_rows import Scores
from gleaner.supervisor import Message


class ExpertsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a dispatch: at its end the rows are sent to the actor `follower`, as `attempt` of request `id`.
    scores: send those of the likeliest tokens (`score_rows`) in place of experts."""

    follower: str
    id: str
    attempt: int
    scores: Scores | None = None


class ExpertRows(Message, frozen=True):
    """To the follower of a request, from a worker: the experts of tokens `first` to `first` + `count` - 1.

    Row p holds the experts that token p of prompt and response was routed to when it was read to make token p
    + 1; the last token has none. `rows`: `count` rows of `width` numbers each (layers x experts of a token),
    raw, little-endian, of type `dtype` (uint8, uint16 or int32). `total`: rows of this attempt; they arrive
    in order in messages of `PART_BYTES`.
    """

    id: str
    attempt: int
    first: int
    count: int
    total: int
    width: int
    dtype: str
    rows: bytes


PART_BYTES = 1 << 20
"""Bytes of rows in one message, so that rows hold up no other message on the link."""
