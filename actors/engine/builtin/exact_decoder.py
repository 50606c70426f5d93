"""`ExactDecoder`: decoding whose bits depend on the request alone.

They do not depend on batch, slot or instance, nor on the point where the request was migrated. Owns the
arrangement of rows in passes of fixed shapes, and the proof that this machine's kernels give the same bits.
The packed weights and the cache are `decoder`'s; there the bits follow the number of rows, because a matrix
product of 3 rows is computed by another kernel than one of 30.

What makes it exact:
- every matrix product of every pass has one shape: `ROWS` rows, and `columns` of the whole cache;
- a context is filled in by the same passes that decode: a row of a pass is one position of one sequence,
  whether its token was drawn a moment ago or was collected elsewhere;
- the contents of a row, or an empty row, change no other row: a product's order of sums follows from its
  shape and not from its values. That the order is the same for each row of the shape is a property of the
  kernels, so it is tested at the start (`NotExact`). Narrower passes are faster with few rows to feed. They
  are used if they give the same bits as the widest one.

The bits are those of the processor and the libraries: hosts that must agree need the same of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gleaner.actors.engine.builtin.decoder import COLUMN_STEP, Decoder
from gleaner.actors.engine.builtin.token_sampling import sample
from gleaner.actors.model.qwen3 import Qwen3

ROWS = 32
"""Rows of a pass. A multiple of two vectors of 16, so no element is left to a loop with another rounding."""

NARROWER = (8, 16)
"""Rows of passes that are tried beside it."""

_ADVICE = "set job.exact = false, or use another build of torch or another processor"


class NotExact(RuntimeError):
    """The kernels of this machine give a row other bits at another index of the same shape."""


@dataclass(frozen=True)
class _Lanes:
    """Addresses to which the rows of a pass write (starts in a flat cache [rows, ...]) and from which they
    read ([layers, rows, ...]).
    """

    key_start: Tensor
    value_start: Tensor
    keys: Tensor
    values: Tensor


class ExactDecoder(Decoder):
    """See the module. Takes memory for whole passes: `slots` are rounded up to a multiple of `ROWS`."""

    def __init__(self, model: Qwen3, slots: int, max_tokens: int) -> None:
        """Raises `NotExact`."""
        # Each sequence then begins on a border of 64 bytes, as its slot 0 does.
        super().__init__(model, _up(slots, ROWS), _up(max_tokens, COLUMN_STEP))
        self._sizes: Sequence[int] = (ROWS,)
        self._prove()

    def rows_of_pass(self, left: int) -> int:
        return next((rows for rows in self._sizes if rows >= left), self._sizes[-1])

    @torch.inference_mode()
    def prefill(self, contexts: Sequence[Sequence[int]], first_slot: int) -> None:
        """As `Decoder.prefill`, a pass of one context's positions at a time."""
        filled: dict[tuple[int, ...], int] = {}
        for slot, context in enumerate(map(tuple, contexts), start=first_slot):
            if (source := filled.setdefault(context, slot)) == slot:
                self._fill(slot, context)
            else:
                self.move(source, slot, len(context))

    @torch.inference_mode()
    def decode(self, tokens: Tensor, positions: Tensor, longest: int, first: int = 0) -> Tensor:
        """As `Decoder.decode`, for as many slots as `rows_of_pass` returns, with any contents in those
        without a request."""
        slots = slice(first, first + len(tokens))
        lanes = self._lanes(torch.arange(slots.start, slots.stop), slots)
        return self._logits(self._pass(tokens, positions, lanes, to_logits=True))

    def _fill(self, slot: int, context: Sequence[int]) -> None:
        start = 0
        while start < len(context):
            rows = self.rows_of_pass(len(context) - start)
            part = context[start : start + rows]
            tokens = torch.zeros(rows, dtype=torch.int64)
            tokens[: len(part)] = torch.tensor(part)
            # Rows without a token write behind everything, because a context never reaches the last position.
            positions = torch.full((rows,), len(self._columns) - 1)
            positions[: len(part)] = torch.arange(start, start + len(part))
            lanes = self._lanes(torch.full((rows,), slot), slice(slot, slot + 1))
            self._pass(tokens, positions, lanes, to_logits=False)
            start += rows

    def _lanes(self, rows: Tensor, slots: slice) -> _Lanes:
        """`rows`: the slot of each row; `slots`: the same ones, or the one that all rows share."""
        shape = (-1, len(rows), -1, -1, -1)
        return _Lanes(
            key_start=self._key_start[rows],
            value_start=self._value_start[rows],
            keys=self._keys[:, slots].expand(shape),
            values=self._values[:, slots].expand(shape),
        )

    def _pass(self, tokens: Tensor, positions: Tensor, lanes: _Lanes, *, to_logits: bool) -> Tensor:
        """Feed one token a row: its keys and values go to the cache, then it attends to what is there."""
        at = positions.unsqueeze(1)
        key_at = (lanes.key_start + at).view(-1)
        value_at = (lanes.value_start + at).view(-1)
        hidden = self._columns > at
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf).unsqueeze(1)
        x = F.embedding(tokens, self._embedding)
        turn = self._turn.index_select(0, positions)
        for index, layer in enumerate(self._layers):
            q, k, v = self._project(x, layer, turn)
            self._flat_keys[index].scatter_(0, key_at, k.reshape(-1))
            self._flat_values[index].index_copy_(0, value_at, v.reshape(-1, self.config.head_dim))
            # Of the last layer a context needs only the keys and values.
            if to_logits or index + 1 < len(self._layers):
                self._finish_layer(x, self._attend(q, lanes.keys[index], lanes.values[index], mask), layer)
        return x

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """One product for each head of keys: so the rows of a context can share a cache without copies."""
        rows, kv_heads, head_dim = len(q), self.config.num_key_value_heads, self.config.head_dim
        q = q.reshape(rows, kv_heads, -1, head_dim)
        scores = torch.empty(kv_heads, rows, q.shape[2], len(self._columns))
        for head in range(kv_heads):
            torch.bmm(q[:, head], keys[:, head], out=scores[head])
        shares = torch.softmax(scores.add_(mask), dim=-1)
        mixed = torch.empty(kv_heads, rows, q.shape[2], head_dim)
        for head in range(kv_heads):
            torch.bmm(shares[head], values[:, head], out=mixed[head])
        return mixed.transpose(0, 1).reshape(rows, -1)

    # -- the proof --

    @torch.inference_mode()
    def _prove(self) -> None:
        """Try passes of each width on a text longer than the widest; keep those that agree with it."""
        length = min(ROWS + NARROWER[0], len(self._columns) - 1)
        text = [token * token % self.config.vocab_size for token in range(length)]
        widest = self._try(text, ROWS)
        agreed = [ROWS]
        for rows in NARROWER:
            with suppress(NotExact):
                if all(map(_alike, self._try(text, rows), widest)):
                    agreed.append(rows)
        self._sizes = sorted(agreed)
        for cache in (self._keys, self._values):
            cache.zero_()

    def _try(self, text: Sequence[int], rows: int) -> list[Tensor]:
        """All results of a text in passes of so many rows: keys, values, and for each position the logits and
        the log-probs of a draw. Every row holds the text, and each row must give the same, step by step and
        from a context. Raises `NotExact`."""
        self._sizes = (rows,)
        self.prefill([text], 0)
        keys, values = self._keys[:, :rows, ..., : len(text)], self._values[:, :rows, :, : len(text)]
        found = [keys[:, :1].clone(), values[:, :1].clone()]
        half, cool = torch.full((rows,), 0.5, dtype=torch.float64), torch.full((rows,), 0.7)
        for position, token in enumerate(text):
            logits = self.decode(torch.full((rows,), token), torch.full((rows,), position), len(text))
            _, logprobs = sample(logits, cool, half)
            found += [logits[:1], logprobs[:1]]
            if not (_alike(logits, logits[:1]) and _alike(logprobs, logprobs[:1])):
                raise NotExact(f"the logits at position {position} differ between the rows: {_ADVICE}")
        if not (_alike(keys, found[0]) and _alike(values, found[1])):
            raise NotExact(f"decoded tokens have other keys and values than those of a context: {_ADVICE}")
        return found


def _alike(some: Tensor, one: Tensor) -> bool:
    """Bit for bit; if `one` has a single element along an axis, it is compared with each of `some`'s."""
    return bool((some.view(torch.int32) == one.view(torch.int32)).all())


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
