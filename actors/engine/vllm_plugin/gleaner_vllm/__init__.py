"""vLLM plugin: registers the weight transfer backend "gleaner" and `made_tokens`.

vLLM calls it in each of its processes. Owns the registration and imports nothing but the standard library
before it is called.
"""

from . import made_tokens

BACKEND = "gleaner"


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; vLLM may call it several times in a process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # there is no public check
        WeightTransferEngineFactory.register_engine(
            BACKEND, "gleaner_vllm.image_transfer", "ImageTransferEngine"
        )
    made_tokens.register()
