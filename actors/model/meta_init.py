"""Model without weights on torch's meta device: names, shapes and dtypes alone.

Random init, also on the meta device, makes torch import a compiler (1.4 s of a core in every process that
starts). So initialisers are disabled.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config

_DRAWS: frozenset[Callable[..., object]] = frozenset(
    {nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_}
)


class _Undrawn(TorchFunctionMode):
    """Initialisers leave tensors as they are."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        options = dict(kwargs or {})
        if func in _DRAWS:
            return options["tensor"] if "tensor" in options else args[0]
        return func(*args, **options)


def unmade(config: Qwen3Config) -> Qwen3:
    """The model of these sizes, in float32: no memory, no random numbers, no weights."""
    with _Undrawn(), torch.device("meta"):
        return Qwen3(config)
