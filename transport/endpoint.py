"""Endpoints as users type them: `HOST:PORT`, with or without `tcp://`.

Pure. Does not check whether a process listens there, or may.
"""

import re

MAX_PORT = 65535
_ENDPOINT = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d{1,5})")


def endpoint(text: str) -> str:
    """`tcp://host:port`. Raises ValueError with the expected form."""
    full = text if "://" in text else f"tcp://{text}"
    match = _ENDPOINT.fullmatch(full)
    if match is None or int(match[2]) > MAX_PORT:
        raise ValueError(
            f"{text}: expected an address like tcp://10.0.0.1:7700, with a port up to {MAX_PORT}"
        )
    return full
