"""Score rows: the likeliest tokens at each place of prompt and response, packed.

Owns their format, which is sent as routed experts are (`experts`): a row of int32 for each token of
prompt and response but the last. Row p is of the place of token p + 1: the bits of that token's log-prob
(float32), then for each of the `top` likeliest tokens its id and the bits of its log-prob. Log-probs of one
row are of one distribution, the model's own but for a constant: only their differences count, except in a
prompt. Rows of places that were not requested are 0. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

MOST_TOP = 20
"""Likeliest tokens of a place, at most: OpenAI's limit."""


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The requested scores: the `top` likeliest tokens of each place, of the prompt too if `prompt`."""

    top: int = 0
    prompt: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of one place. logprob: of its actual token; top: the likeliest tokens with their log-probs,
    likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def packed(scores: Sequence[Score], top: int) -> bytes:
    """Rows of these places, raw, little-endian. Raises ValueError if one has fewer than `top` tokens."""
    ids = np.array([[token for token, _ in score.top[:top]] for score in scores], "<i4").reshape(
        len(scores), top
    )
    logprobs = np.array([[one for _, one in score.top[:top]] for score in scores], "<f4").reshape(
        len(scores), top
    )
    rows = np.zeros((len(scores), 1 + 2 * top), "<i4")
    rows[:, 0] = np.array([score.logprob for score in scores], "<f4").view("<i4")
    rows[:, 1::2] = ids
    rows[:, 2::2] = logprobs.view("<i4")
    return rows.tobytes()


def unpacked(rows: NDArray[np.generic]) -> list[Score]:
    """The places of such rows, of any type."""
    whole = np.ascontiguousarray(rows.astype("<i4"))
    logprobs = whole.view("<f4")
    return [
        Score(float(logprob[0]), tuple(zip(row[1::2].tolist(), logprob[2::2].tolist(), strict=True)))
        for row, logprob in zip(whole, logprobs, strict=True)
    ]
