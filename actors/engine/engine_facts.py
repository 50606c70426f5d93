"""What an engine that somebody else runs says of itself. Pure: the asking is `server_facts`'."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """kind: "sglang" or "vllm". model: its name.

    slots: requests that it decodes together; context_tokens: of the longest prompt with its response;
    vocabulary: tokens that the model knows (some servers die of others), where this host has the model's
    folder; each 0 where it is not known. tokenizer: its folder on this host, "" where there is none.
    routed_experts: whether it says which experts tokens are routed to.
    """

    kind: str
    slots: int
    context_tokens: int
    model: str
    tokenizer: str = ""
    vocabulary: int = 0
    routed_experts: bool = False
