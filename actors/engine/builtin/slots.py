"""`Slots`: the requests that an engine decodes, as arrays with an element for each slot.

Owns the columns and what requests ask for beyond them. Which slots are in use is `engine`'s.
"""

from __future__ import annotations

import numpy as np

from gleaner.actors.engine.worker.engine_port import Assignment
from gleaner.actors.protocol.sampling_params import PLAIN, Sampling
from gleaner.transport.token_frame import Flag


class Slots:
    """State of the slots, as parallel arrays; the first n elements are a batch."""

    def __init__(self, slots: int, max_tokens: int) -> None:
        self.ticket = np.zeros(slots, np.uint32)
        self.key = np.zeros(slots, np.uint64)
        self.token = np.zeros(slots, np.int64)
        self.position = np.zeros(slots, np.int64)  # of `token` in prompt + response
        self.made = np.zeros(slots, np.int64)  # tokens of the response, prefix included
        self.limit = np.zeros(slots, np.int64)
        self.response = np.zeros((slots, max_tokens), np.uint32)  # its first `made` tokens
        self.temperature = np.ones(slots, np.float32)
        self.flags = np.zeros(slots, np.uint8)  # of the next row: FIRST or nothing
        self._columns = tuple(vars(self).values())
        self.sampling: dict[int, Sampling] = {}  # by ticket, of executing requests that ask for some

    def enter(self, slot: int, one: Assignment, key: np.uint64, context: tuple[int, ...]) -> None:
        """Give a slot to a request. context: prompt and prefix; the last token is fed at the next step."""
        self.ticket[slot], self.key[slot], self.temperature[slot] = one.ticket, key, one.temperature
        self.token[slot], self.position[slot] = context[-1], len(context) - 1
        self.made[slot], self.limit[slot] = len(one.prefix), one.max_new_tokens
        self.response[slot, : len(one.prefix)] = one.prefix
        self.flags[slot] = Flag.FIRST
        if one.sampling not in (None, PLAIN):
            self.sampling[one.ticket] = one.sampling

    def move(self, source: int, target: int) -> None:
        """Copy a slot to another one."""
        for column in self._columns:
            column[target] = column[source]

    def asking(self, first: int, end: int) -> dict[int, Sampling]:
        """The rows of slots first … end - 1 with a `Sampling`, counted from the first."""
        if not self.sampling:
            return {}
        tickets = enumerate(self.ticket[first:end].tolist())
        return {row: self.sampling[ticket] for row, ticket in tickets if ticket in self.sampling}
