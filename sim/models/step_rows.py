"""Rows of one turn of a modelled engine: tickets, tokens, log-probs and flags.

Each is a column. Pure, and vectorised: a turn is a few calls of numpy, however many requests it has.
"""

import numpy as np
from numpy.typing import NDArray

from gleaner.actors.engine.worker.engine_port import StepOutput
from gleaner.sim.models.tokens import tokens_at
from gleaner.transport.token_frame import Flag

_ENDED = int(Flag.ABORTED | Flag.NO_TOKEN)


def rows_of_equals(held: NDArray[np.void], each: int, vocabulary: int) -> StepOutput:
    """`each` rows of every request in `held`, those of a request together; no flag is set yet."""
    if each == 1:
        tickets, keys, positions = held["ticket"].copy(), held["key"], held["made"]
    else:
        tickets, keys = np.repeat(held["ticket"], each), np.repeat(held["key"], each)
        positions = (held["made"][:, None] + np.arange(each)).ravel()
    return StepOutput(tickets, *tokens_at(keys, positions, vocabulary), np.zeros(len(tickets), np.uint8))


def rows_of(held: NDArray[np.void], steps: NDArray[np.int64], vocabulary: int) -> StepOutput:
    """As many rows of each request as `steps` has for it, with their flags."""
    total, after = int(steps.sum()), np.cumsum(steps)
    which = np.repeat(np.arange(len(held)), steps)
    offsets = np.arange(total) - np.repeat(after - steps, steps)
    drawn = tokens_at(held["key"][which], held["made"][which] + offsets, vocabulary)
    flags = np.zeros(total, np.uint8)
    flags[(after - steps)[held["fresh"]]] |= np.uint8(Flag.FIRST)
    flags[(after - 1)[held["made"] + steps == held["end"]]] |= np.uint8(Flag.FINISHED)
    return StepOutput(held["ticket"][which], *drawn, flags)


def behind(ends: list[int], rows: StepOutput) -> StepOutput:
    """The last rows of aborted tickets, then these."""
    if not ends:
        return rows
    none = np.zeros(len(ends), np.uint8)
    return StepOutput(
        tickets=np.concatenate((np.array(ends, np.uint32), rows.tickets)),
        tokens=np.concatenate((none.astype(np.uint32), rows.tokens)),
        logprobs=np.concatenate((none.astype(np.float32), rows.logprobs)),
        flags=np.concatenate((none + np.uint8(_ENDED), rows.flags)),
    )
