"""What vLLM calls in each of its processes: makes the weight transfer backend "gleaner" known, and what its
engine core is asked of the requests that it holds.

Owns the registration and imports nothing but the standard library before it is called.
"""

from . import made_tokens

BACKEND = "gleaner"


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; vLLM may call it several times in a process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # it has no public question
        WeightTransferEngineFactory.register_engine(
            BACKEND, "gleaner_vllm.image_transfer", "ImageTransferEngine"
        )
    made_tokens.register()
