"""`ImageTransferEngine`: vLLM weight transfer from a flat image in shared memory.

The image is on the same host.

Owns the mapping and the hand-over to the model's own loader, which shards, fuses and repacks as for a
checkpoint. Runs in vLLM's workers, so it knows nothing of Gleaner but the arguments of one call: the path of
the image and the offset of each tensor. The caller has verified the image by hash.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

Row = tuple[str, str, tuple[int, ...], int, int]
"""name, dtype as torch names it ("float32"), shape, offset and size in bytes"""


class BadImage(ValueError):
    """The image or its layout does not fit. The model's contents are now uncertain: load another image."""


@dataclass
class ImageInit(WeightTransferInitInfo):  # type: ignore[misc]
    """No parameters are agreed beforehand."""


@dataclass
class ImageUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One whole version: `path` of the image, `tensors` in the order of loading."""

    path: str
    tensors: list[Row]


class ImageTransferEngine(WeightTransferEngine[ImageInit, ImageUpdate]):  # type: ignore[misc]
    """Backend "gleaner"; see the module."""

    init_info_cls = ImageInit
    update_info_cls = ImageUpdate

    def init_transfer_engine(self, init_info: ImageInit) -> None:
        """Nothing to set up: the image is a file."""

    def start_weight_update(self) -> None:
        """Layers go back to the form of a checkpoint, so that the model's own loader takes them."""
        # Before that: afterwards a tied matrix has two names, of which a checkpoint has one.
        self._wanted = {name for name, _ in self.model.named_parameters()}
        self._tied = _tied_modules(self.model)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """One call a version. Raises BadImage, and errors of the model's loader; the model then holds a
        mixture, and another image may be loaded over it, from `start_weight_update` on."""
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except Exception:
            # vLLM ends the session and leaves layers half in the form of a checkpoint: the next would fail.
            finalize_layerwise_reload(self.model, self.model_config)
            raise
        if self.device.type != "cpu":
            torch.accelerator.synchronize()  # the next step computes with the new weights

    def receive_weights(self, update_info: ImageUpdate) -> None:
        """Map the image and feed the loader; every parameter must be there."""
        loaded = self.model.load_weights(_tensors(update_info))
        if loaded is None or self.model_config.quantization is not None:
            return  # such a loader does not report them, or its names are not those of parameters
        if missing := self._wanted - set(loaded):
            raise BadImage(
                f"{update_info.path} lacks {len(missing)} parameters, the first is {min(missing)!r}: "
                "it was made from another model"
            )

    def finish_weight_update(self) -> None:
        """Layers are repacked for serving.

        A module whose matrix is that of another one is left out by vLLM 0.32, as nothing was loaded into it;
        on a CPU it would go on with its packed copy of the old weights.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        for module in self._tied:
            module.quant_method.process_weights_after_loading(module)  # type: ignore[union-attr, operator]

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def _tied_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Modules that vLLM packs and whose parameters all belong to earlier modules."""
    seen: set[int] = set()
    tied = []
    for module in model.modules():
        own = {id(parameter) for parameter in module.parameters(recurse=False)}
        if own and own <= seen and hasattr(module, "quant_method"):
            tied.append(module)
        seen |= own
    return tied


def _tensors(update: ImageUpdate) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of the image, sharing its memory; each keeps the mapping alive."""
    with open(update.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the image is not written while it is mapped
        size = os.fstat(file.fileno()).st_size
        # Private, so that no loader can write into memory that others read; nothing is copied unless one
        # does.
        image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    for name, dtype, shape, offset, nbytes in update.tensors:
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise BadImage(f"{name!r} is of {dtype!r}, which torch does not have")
        tensor = torch.empty(shape, dtype=kind, device="meta")
        if tensor.numel() * tensor.element_size() != nbytes or offset < 0 or offset + nbytes > size:
            raise BadImage(
                f"{name!r} ({dtype}{list(shape)}) at {offset}, {nbytes} bytes, does not fit {update.path}, "
                f"which has {size}"
            )
        flat = torch.frombuffer(image, dtype=kind, count=tensor.numel(), offset=offset)
        yield name, flat.view(tuple(shape))
