"""`BuiltinEngine`: continuous batching of a Qwen3 model in fixed slots.

Owns the slots of requests, admission, stopping and abortion. The computation is in `row_blocks`, on
`decoder` and `token_sampling`; requests that cannot be served are refused by `request_limits`.

Invariants:
- Executing requests hold slots 0 to n - 1, without holes: one that ends is replaced by the last one. So a
  step computes n rows and never more.
- For each slot the cache holds positions 0 to `position` - 1; `token`, the newest one, is fed at the next
  step. A request enters with all but the last token of prompt + prefix in the cache, so a migrated request
  differs from one that stayed only in the engine that computed its cache.
- A ticket is waiting, or executing, or unknown; never two of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from gleaner.actors.engine.builtin.decoder import Decoder
from gleaner.actors.engine.builtin.engine_size import EngineSize
from gleaner.actors.engine.builtin.exact_decoder import ROWS, ExactDecoder
from gleaner.actors.engine.builtin.packed_weights import Packed, pack
from gleaner.actors.engine.builtin.request_limits import RequestLimits
from gleaner.actors.engine.builtin.row_blocks import RowBlocks
from gleaner.actors.engine.builtin.slots import Slots
from gleaner.actors.engine.builtin.streamed_decoder import StreamedDecoder
from gleaner.actors.engine.builtin.token_sampling import request_keys
from gleaner.actors.engine.worker.engine_port import (
    Assignment,
    BrokenWeights,
    CannotServe,
    EngineBusy,
    EngineFull,
    EngineStats,
    StepOutput,
)
from gleaner.actors.model.flat_image import view_weights
from gleaner.actors.model.meta_init import unmade
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.tensor_spec import TensorSpec
from gleaner.transport.token_frame import MAX_ROWS, Flag

_NOTHING, _FINISHED, _ENDED = np.array([0, Flag.FINISHED, Flag.ABORTED | Flag.NO_TOKEN], np.uint8)


def _decoder(model: Qwen3, size: EngineSize, exact: bool) -> Decoder:
    if not size.reserve_bytes:
        return (ExactDecoder if exact else Decoder)(model, size.slots, size.max_tokens)
    if exact:
        raise ValueError("an exact engine has all its layers in memory: give it no reserve_bytes")
    device = torch.device(size.device)
    return StreamedDecoder(model, size.slots, size.max_tokens, size.reserve_bytes, device)


class BuiltinEngine:
    """An `Engine` on the CPU. Not thread-safe: use one thread at a time, any one."""

    def __init__(
        self,
        model: Qwen3,
        size: EngineSize,
        *,
        eos_token_ids: Sequence[int],
        weights_version: int = 0,
        exact: bool = False,
    ) -> None:
        """`exact`: the bits of a request depend on nothing but itself (`exact_decoder`); on one thread only.

        Only the sizes of `model` are kept. Raises `NotExact`, `DoesNotFit`.
        """
        slots, max_tokens, threads = size.slots, size.max_tokens, size.threads
        if exact and threads > 1:
            raise ValueError(f"an exact engine computes on one thread, not on {threads}")
        torch.set_num_threads(threads)
        self._config = model.config
        self._staged: tuple[Packed, int] | None = None
        self._retired: Packed | None = None  # memory of the previous weights, freed by the next staging call
        self._decoder = _decoder(model, size, exact)
        self._slot_count, self._max_pending = slots, size.max_pending
        self._eos = np.array(sorted(set(eos_token_ids)), dtype=np.int64)
        self._slots = Slots(slots + ROWS, max_tokens)  # the last pass of an exact decoder may go beyond them
        self._limits = RequestLimits(model.config.vocab_size, max_tokens, self._eos.tolist())
        self._blocks = RowBlocks(self._decoder, self._slots, self._eos.tolist(), threads)
        self._held: dict[int, Assignment] = {}  # by ticket, of executing ones
        self._executing = 0
        self._waiting: dict[int, Assignment] = {}  # by ticket, in order of arrival
        self._aborted: dict[int, None] = {}  # tickets whose last row is due; a set that keeps its order
        self._weights_version = weights_version
        self._steps = self._tokens_generated = self._tokens_prefilled = self._tokens_attended = 0

    @property
    def weights_version(self) -> int:
        return self._weights_version

    def use_threads(self, threads: int) -> None:
        """Compute on so many threads, at most as many as it was made for; the others are free."""
        torch.set_num_threads(threads)
        self._blocks.use(threads)

    @property
    def executing(self) -> int:
        return self._executing

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not (self._executing or self._waiting or self._aborted)

    def stats(self) -> EngineStats:
        return EngineStats(
            slots=self._slot_count,
            executing=self._executing,
            pending=self.pending,
            steps=self._steps,
            tokens_generated=self._tokens_generated,
            tokens_prefilled=self._tokens_prefilled,
            tokens_attended=self._tokens_attended,
        )

    def add(self, assignments: Iterable[Assignment]) -> None:
        known = set(self._slots.ticket[: self._executing].tolist()) | self._waiting.keys()
        taken: dict[int, Assignment] = {}
        for one in assignments:
            if one.ticket in known or one.ticket in taken:
                raise CannotServe(
                    one.ticket, "this ticket is being served already: give each dispatch its own"
                )
            self._limits.require_fit(one)
            taken[one.ticket] = one
        if len(self._waiting) + len(taken) > self._max_pending:
            raise EngineFull(
                f"{self.pending} requests wait and {len(taken)} more came, {self._max_pending} fit"
            )
        self._waiting |= taken

    def abort(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            if self._waiting.pop(ticket, None) is None:
                for slot in np.flatnonzero(self._slots.ticket[: self._executing] == ticket):
                    self._release(int(slot))
            self._aborted[ticket] = None

    def drain(self) -> None:
        self.abort([*self._slots.ticket[: self._executing].tolist(), *self._waiting])

    def retract(self) -> list[int]:
        """Move all executing requests to the front of the queue, with their tokens; their caches are computed
        anew under the weights served then. Returns the tickets of all waiting requests."""
        slots, again = self._slots, dict[int, Assignment]()
        for slot in range(self._executing):
            ticket = int(slots.ticket[slot])
            made = slots.response[slot, : slots.made[slot]].tolist()
            again[ticket] = replace(self._held[ticket], prefix=made)
        self._executing = 0
        self._held.clear()
        slots.sampling.clear()
        self._waiting = again | self._waiting
        return list(self._waiting)

    def load_weights(self, source: memoryview, specs: Sequence[TensorSpec], version: int) -> None:
        self._require_idle(version)
        self.stage_weights(source, specs, version)
        self.commit_weights()

    def stage_weights(self, source: memoryview, specs: Sequence[TensorSpec], version: int) -> None:
        """Prepare an image beside the served weights, which takes as much memory again. The one call that
        another thread may make while a step runs; previously staged weights are dropped. Raises `BadImage`.
        """
        self._staged = self._retired = None
        model = unmade(self._config)
        view_weights(model, source, specs)
        self._staged = pack(model), version

    def commit_weights(self, *, keep: bool = False) -> list[int]:
        """Serve the staged weights. Raises `EngineBusy` unless idle. With `keep` all requests continue under
        the new weights, with caches computed anew; returns their tickets."""
        assert self._staged is not None, "stage_weights comes first"
        packed, version = self._staged
        if not keep:
            self._require_idle(version)
        kept = self.retract() if keep else []
        self._retired, self._staged = self._decoder.take(packed), None
        self._weights_version = version
        return kept

    @property
    def staged_version(self) -> int | None:
        """The version that `commit_weights` would serve; None: nothing is staged."""
        staged = self._staged
        return None if staged is None else staged[1]

    def _require_idle(self, version: int) -> None:
        if self._executing or self._waiting:
            raise EngineBusy(
                f"{self._executing} requests execute and {self.pending} wait under weights "
                f"{self._weights_version}: finish or drain them before loading {version}"
            )

    def step(self) -> StepOutput:
        self._admit()
        n, slots = self._executing, self._slots
        tokens, logprobs = self._draw(n) if n else (np.zeros(0, np.int64), np.zeros(0, np.float32))
        slots.token[:n] = tokens
        slots.position[:n] += 1
        attended = int(slots.position[:n].sum())
        slots.response[np.arange(n), slots.made[:n]] = tokens
        slots.made[:n] += 1
        ended = slots.made[:n] == slots.limit[:n]
        for eos in self._eos:
            ended |= tokens == eos
        for row, asked in slots.asking(0, n).items():
            ended[row] = slots.made[row] == slots.limit[row] or int(tokens[row]) in self._limits.stops(asked)
        slots.flags[:n] |= np.where(ended, _FINISHED, _NOTHING)
        output = self._rows(n, logprobs)
        slots.flags[:n] = 0
        for slot in np.flatnonzero(ended)[::-1]:  # from the last: a moved slot then never ended too
            self._release(int(slot))
        self._steps += 1
        self._tokens_generated += n
        self._tokens_attended += attended
        return output

    def _draw(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """A token and its log-prob for each of the first n slots."""
        tokens, logprobs = self._blocks.draw(n)
        if not np.isfinite(logprobs).all():
            raise BrokenWeights(
                f"weights version {self._weights_version} give logits that are no numbers: the checkpoint or "
                "the training step that made them is broken, load another version"
            )
        return tokens, logprobs

    def _rows(self, n: int, logprobs: NDArray[np.float32]) -> StepOutput:
        """The last rows of aborted tickets, then a row for each of the first n slots; always copies."""
        ends = list(islice(self._aborted, MAX_ROWS - n))
        for ticket in ends:
            del self._aborted[ticket]
        none, slots = np.zeros(len(ends), np.uint8), self._slots
        return StepOutput(
            tickets=np.concatenate((np.array(ends, np.uint32), slots.ticket[:n])),
            tokens=np.concatenate((none, slots.token[:n])).astype(np.uint32),
            logprobs=np.concatenate((none, logprobs)).astype(np.float32),
            flags=np.concatenate((none | _ENDED, slots.flags[:n])),
        )

    def _admit(self) -> None:
        """Give free slots to waiting requests in order of arrival, and compute their caches in batches."""
        free = self._slot_count - self._executing
        if not free or not self._waiting:
            return
        chosen = [self._waiting.pop(ticket) for ticket in list(self._waiting)[:free]]
        keys = request_keys([one.seed for one in chosen])
        entering = [(one, key, (*one.prompt, *one.prefix)) for one, key in zip(chosen, keys, strict=True)]
        entering.sort(key=lambda entry: len(entry[2]))  # contexts of like length share a prefill batch
        first = self._executing
        for slot, (one, key, context) in enumerate(entering, start=first):
            self._slots.enter(slot, one, key, context)
            self._held[one.ticket] = one
        self._executing += len(entering)
        contexts = [context[:-1] for _, _, context in entering]
        self._blocks.prefill(contexts, first)
        self._tokens_prefilled += sum(map(len, contexts))

    def _release(self, slot: int) -> None:
        """Free a slot; the last executing request takes its place."""
        self._executing = last = self._executing - 1
        self._slots.sampling.pop(int(self._slots.ticket[slot]), None)
        del self._held[int(self._slots.ticket[slot])]
        if slot != last:
            self._slots.move(last, slot)
            self._decoder.move(last, slot, int(self._slots.position[slot]))
