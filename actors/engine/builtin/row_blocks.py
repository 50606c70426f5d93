"""`RowBlocks`: computation of a step's tokens and of caches, in blocks of slots on threads.

Owns the threads, and the division of slots into blocks. The mathematics is in `decoder` and
`token_sampling`; which request has which slot is decided by `engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gleaner.actors.engine.builtin.decoder import Decoder
from gleaner.actors.engine.builtin.logit_filters import biased, forbid
from gleaner.actors.engine.builtin.slots import Slots
from gleaner.actors.engine.builtin.token_sampling import sample, uniforms

PREFILL_TOKENS = (
    4096  # rows of one prefill batch: large enough for full speed, its activations stay in the cache
)
LEAST_BLOCK = 16
"""Rows that a thread decodes at least: below that the fixed part of a pass is most of it."""
PREFILL_SPREAD = 2  # longest to shortest context of one prefill batch: at most half of its rows are padding

T = TypeVar("T")


class RowBlocks:
    """Computes on `slots` with `decoder`, on at most so many `threads` at a time. `ends`: the model's end
    tokens."""

    def __init__(self, decoder: Decoder, slots: Slots, ends: Sequence[int], threads: int) -> None:
        # Torch's own threads synchronise after each of a step's small products, these only at the end of a
        # step.
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "decode", initializer=torch.set_num_threads, initargs=(1,))
        self._decoder, self._slots, self._ends = decoder, slots, ends

    def use(self, threads: int) -> None:
        """Compute on so many threads at a time, at most as many as it was made for."""
        self._threads = threads

    def draw(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """A token and its log-prob for each of the first n slots."""
        count = max(1, min(self._threads, n // LEAST_BLOCK))
        borders = [n * block // count for block in range(count + 1)]
        drawn = self._side_by_side(self._draw_block, list(pairwise(borders)))
        tokens, logprobs = (np.concatenate(column) for column in zip(*drawn, strict=True))
        return tokens, logprobs

    def prefill(self, contexts: list[tuple[int, ...]], first: int) -> None:
        """Fill slots `first` … in batches of neighbours; contexts are in order of their length."""
        start, batches = 0, list[tuple[int, int]]()
        while start < len(contexts) and not contexts[start]:
            start += 1  # a prompt of one token needs no cache
        while start < len(contexts):
            end = start + 1
            while (
                end < len(contexts)
                and len(contexts[end]) <= PREFILL_SPREAD * len(contexts[start])
                and len(contexts[end]) * (end + 1 - start) <= PREFILL_TOKENS
            ):
                end += 1
            batches.append((start, end))
            start = end
        self._side_by_side(lambda of, to: self._decoder.prefill(contexts[of:to], first + of), batches)

    def _draw_block(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """A token and its log-prob for each of these slots, in as many passes as the decoder needs."""
        parts, at = [], first
        while at < end:
            start, at = at, at + self._decoder.rows_of_pass(end - at)
            parts.append(self._draw_rows(start, at))
        tokens, logprobs = (np.concatenate(column)[: end - first] for column in zip(*parts, strict=True))
        return tokens, logprobs

    def _draw_rows(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """A token and its log-prob for each of these slots, in one pass."""
        slots, rows = self._slots, slice(first, end)
        logits = self._decoder.decode(
            torch.from_numpy(slots.token[rows]),
            torch.from_numpy(slots.position[rows]),
            longest=int(slots.position[rows].max()) + 1,
            first=first,
        )
        asking = slots.asking(first, end)
        ends = {
            row: (*asked.stop_token_ids, *self._ends)
            for row, asked in asking.items()
            if slots.made[first + row] < asked.min_new_tokens
        }
        temperature = slots.temperature[rows]
        with torch.inference_mode():
            tokens, logprobs = sample(
                forbid(biased(logits, asking), ends),
                None if (temperature == 1).all() else torch.from_numpy(temperature),
                torch.from_numpy(uniforms(slots.key[rows], slots.made[rows])),
                asking,
            )
        return tokens.numpy(), logprobs.numpy()

    def _side_by_side(self, compute: Callable[[int, int], T], ranges: list[tuple[int, int]]) -> list[T]:
        """`compute` for each range of slots, in order; if there are several, on this engine's threads."""
        if self._threads == 1 or len(ranges) < 2:
            return [compute(start, end) for start, end in ranges]
        return list(self._pool.map(compute, *zip(*ranges, strict=True)))
