"""Which experts of a mixture-of-experts model each token was routed to, from an engine to a follower.

Rows are no part of the token log: they go past the manager, are told at most once, and are held by whoever
asked until it answered. A row that was lost is computed again (`gateway.expert_rows`).
"""

import msgspec

from actors.rollout.score_rows import Scores
from supervisor import Message


class ExpertsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Of a dispatch: with its end the rows are told to the actor `follower`, as `attempt` of request `id`.
    scores: those of the likeliest tokens (`score_rows`), in the place of experts."""

    follower: str
    id: str
    attempt: int
    scores: Scores | None = None


class ExpertRows(Message, frozen=True):
    """To who follows a request, from a worker: the experts of tokens `first` to `first` + `count` - 1.

    Row p is where token p of prompt and response went when it was read to make token p + 1; the last token
    has none. `rows`: `count` rows of `width` numbers each (layers x experts of a token), raw, little-endian,
    of type `dtype` (uint8, uint16 or int32). `total`: rows of this attempt, which come in order in messages
    of `PART_BYTES`.
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
"""Of rows in one message, so that they hold up nothing else on the way."""
