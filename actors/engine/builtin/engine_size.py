"""`EngineSize`: capacity of the builtin engine. Pure."""

from dataclasses import dataclass

from gleaner.transport.token_frame import MAX_ROWS


@dataclass(frozen=True, slots=True)
class EngineSize:
    """Capacity of an engine.

    Args:
        slots: requests that decode together.
        max_tokens: bounds prompt + response of a request.
        max_pending: requests that wait for a slot.
        threads: compute at a time, each a block of the rows of a step, or the caches of a batch of contexts.
        reserve_bytes: memory of `device` for weights, cache and activations, beyond which layers are streamed
            from the host; 0: all of them are resident, on the host.
        device: where passes compute, by torch's name; another one than "cpu" needs `reserve_bytes`.

    Raises ValueError.
    """

    slots: int
    max_tokens: int
    max_pending: int = 4096
    threads: int = 1
    reserve_bytes: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if min(self.slots, self.max_tokens, self.max_pending, self.threads) < 1:
            raise ValueError("slots, max_tokens, max_pending and threads must each be at least 1")
        if self.slots > MAX_ROWS // 2:
            raise ValueError(f"{self.slots} slots are too many, at most {MAX_ROWS // 2} fit a token frame")
        if self.reserve_bytes and self.threads > 1:
            raise ValueError(f"layers are streamed to one thread, not to {self.threads}")
        if self.device != "cpu" and not self.reserve_bytes:
            raise ValueError(f"device {self.device} needs reserve_bytes: its memory that may be used")
