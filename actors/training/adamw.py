"""AdamW on given tensors, by torch's own function.

Owns the moments and the count of steps. `torch.optim.AdamW` computes the same bits with the same function;
but its constructor imports torch's compiler, 2 to 4 s of a core and 85 MiB in every process that starts.

Source: `torch.optim.adamw.adamw` of PyTorch 2.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adamw import adamw

EPS = 1e-8
"""Added to the root of the second moment; PyTorch's default."""


class AdamW:
    """Decoupled weight decay, no AMSGrad, one tensor after the other.

    Args:
        weights: the optimized tensors, by name; of any shapes, floating-point.
        lr: learning rate, betas: decays of the two moments, weight_decay: see `torch.optim.AdamW`.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self._weights = dict(weights)
        self._lr, self._betas, self._weight_decay = lr, betas, weight_decay
        self.first = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        """Mean of the gradients, by name, of each weight's shape; the live tensors."""
        self.second = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        """Mean of their squares."""
        self._steps = {name: torch.tensor(0.0) for name in self._weights}

    def set_steps(self, steps: int) -> None:
        """Set the number of steps since the moments were empty."""
        for count in self._steps.values():
            count.fill_(float(steps))

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate of the steps from now on."""
        self._lr = lr

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Move the weights. A weight without a gradient stays as it is, as do its moments."""
        moved = [name for name in self._weights if gradients.get(name) is not None]
        adamw(
            [self._weights[name] for name in moved],
            [gradient for name in moved if (gradient := gradients[name]) is not None],
            [self.first[name] for name in moved],
            [self.second[name] for name in moved],
            [],
            [self._steps[name] for name in moved],
            foreach=False,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self._lr,
            weight_decay=self._weight_decay,
            eps=EPS,
            maximize=False,
        )
