"""`SharedPrompts`: packed sequences in which each shared prompt is computed once.

A prompt but for its last token is a head; that last token and the response are a tail. Causal attention lets
nothing of a tail change its head, so the keys and values of one head serve all tails behind it. Of heads
nothing but those is needed: what predicts a response are the states of tails. Rows are packed without
padding; attention alone pads. No parameters and no sampling.

Source: Liu et al., "Prefix Grouper: Efficient GRPO Training through Shared-Prefix Forward", arXiv:2506.05433.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Padding:
    """Layout of packed rows in a padded rectangle. at int64 [rows]: their places in count * width."""

    at: Tensor
    count: int
    width: int

    def pad(self, rows: Tensor) -> Tensor:
        """[rows, heads, size] to [count, width, heads, size], zero in empty places."""
        blank = rows.new_zeros(self.count * self.width, *rows.shape[1:])
        return blank.index_copy(0, self.at, rows).view(self.count, self.width, *rows.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """Back again."""
        return padded.flatten(0, 1).index_select(0, self.at)


class SharedPrompts:
    """See the module. `tokens` and `positions`, int64 [rows]: of all heads, then of all tails; `tails` rows
    are of tails. `owner`, int64 [sequences]: the head before each tail."""

    def __init__(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> None:
        """prompts: one for each response, of at least one token; equal ones are computed once. responses: the
        input tokens of each; the state of a tail's last token predicts the next one."""
        unique = {prompt: at for at, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        heads = [prompt[:-1] for prompt in unique]
        tails = [(prompt[-1], *response) for prompt, response in zip(prompts, responses, strict=True)]
        self.owner = torch.tensor([unique[tuple(prompt)] for prompt in prompts])
        begins = [len(prompt) - 1 for prompt in prompts]
        self.tokens = torch.tensor([token for part in (*heads, *tails) for token in part])
        self.positions = torch.tensor(
            [at for head in heads for at in range(len(head))]
            + [begin + at for begin, tail in zip(begins, tails, strict=True) for at in range(len(tail))]
        )
        self.tails = sum(map(len, tails))
        self._heads, self._tails = _padding(heads), _padding(tails)
        columns = torch.arange(self._heads.width)
        seen = (columns < torch.tensor(begins).unsqueeze(1)).unsqueeze(1)
        causal = torch.ones(self._tails.width, self._tails.width, dtype=torch.bool).tril()
        shape = len(tails), self._tails.width, -1
        self._mask = torch.cat((seen.expand(shape), causal.expand(shape)), dim=2).unsqueeze(1)

    def __len__(self) -> int:
        """Rows."""
        return len(self.tokens)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, last: bool) -> Tensor:
        """Attention of rows to the earlier positions of their sequences: [rows, heads, size] each, to the
        same. last: only the rows of tails, which are the last ones, are computed."""
        heads = len(self) - self.tails
        k_heads, v_heads = self._heads.pad(k[:heads]), self._heads.pad(v[:heads])
        k_all, v_all = (
            torch.cat((head[self.owner], self._tails.pad(tail[heads:])), dim=1).transpose(1, 2)
            for head, tail in ((k_heads, k), (v_heads, v))
        )
        q_tails = self._tails.pad(q[heads:]).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q_tails, k_all, v_all, attn_mask=self._mask, enable_gqa=True)
        of_tails = self._tails.unpad(mixed.transpose(1, 2))
        if last or not heads:
            return of_tails
        return torch.cat((self._heads.unpad(causal(self._heads.pad(q[:heads]), k_heads, v_heads)), of_tails))


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each position attends to itself and those before it: [sequences, T, heads, size] each, to the same."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def _padding(parts: Sequence[Sequence[int]]) -> Padding:
    width = max(map(len, parts))
    at = [row * width + column for row, part in enumerate(parts) for column in range(len(part))]
    return Padding(torch.tensor(at, dtype=torch.int64), len(parts), width)
