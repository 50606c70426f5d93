"""Soundness of a server's output: checks of a chunk, and a probe after a load."""

import math
from array import array

from gleaner.actors.engine.servers.port import Ask, Chunk, ServerDied, ServerRefused, ServerWire

PROBE_TOKEN = 1  # any word of any vocabulary


def require_sound(chunk: Chunk, version_name: str) -> None:
    """Raises `ServerDied` for tokens that no caller may get. version_name: the weights at the server."""
    if not math.isfinite(sum(chunk.logprobs)):
        raise ServerDied("the server made a log-prob that is no number: its weights are broken")
    if chunk.version and chunk.version != version_name:
        raise ServerDied(
            f"the server serves weights {chunk.version!r}, this worker gave it {version_name!r}: another "
            "client loads weights into it"
        )


async def probe(wire: ServerWire, rid: str, version_name: str) -> None:
    """Have one token made by the weights that were loaded. Raises `ServerDied`."""
    ask = Ask(rid, array("I", [PROBE_TOKEN]), 1, 0.0, 0)
    made = 0
    try:
        async for chunk in wire.stream(ask):
            require_sound(chunk, version_name)
            made += len(chunk.tokens)
    except ServerRefused as refused:
        raise ServerDied(f"the server refused a probe of one token: {refused}") from refused
    if made != 1:
        raise ServerDied(f"a probe of one token brought {made}")
