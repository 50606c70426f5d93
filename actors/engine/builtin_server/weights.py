"""`Image`: weights of a Hugging Face folder, for an engine that already serves.

Adapter: reads files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.model.flat_image import image_bytes, weight_layout, write_weights
from gleaner.actors.model.qwen3 import BadCheckpoint, Qwen3Config
from gleaner.actors.model.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Image:
    """Weights as one flat run of bytes, and the offset of each tensor in it."""

    view: memoryview
    specs: Sequence[TensorSpec]


def read_image(directory: Path, like: Qwen3Config) -> Image:
    """The weights of a folder, float32. Takes the time of reading them; call it on a thread.

    Raises BadCheckpoint if they cannot be read, or belong to a model of another shape than `like`: a cache, a
    slot and a vocabulary are made once.
    """
    model = load_checkpoint(directory)
    if replace(model.config, eos_token_ids=like.eos_token_ids) != like:
        raise BadCheckpoint(f"{directory}/config.json is of another model than the one that is served")
    specs = weight_layout(model)
    buffer = memoryview(bytearray(image_bytes(specs)))
    write_weights(model, buffer)
    return Image(buffer, specs)
