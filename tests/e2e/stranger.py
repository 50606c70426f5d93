"""Connection attempts from an untrusted host: prints, as JSON, everything received.

    python stranger.py KEYS,HEAD_KEY,... ENDPOINT...

KEYS is a key directory that no node trusts; the rest are public keys of the cluster, which are no secret.
Each endpoint gets a control message without keys, one under each of those public keys, a pull of weights with
an invented token, and noise. The output has the link events, frames and bytes of each.
"""

import asyncio
import json
import os
import sys

from gleaner.supervisor.message import encode_body, kind_of
from gleaner.supervisor.system_messages import SYSTEM, Inspect
from gleaner.transport.bulk_frames import SECRET_BYTES, TOKEN_ID_BYTES, Request, encode_request
from gleaner.transport.envelope import Envelope, Mode, encode
from gleaner.transport.keys import NodeKeys
from gleaner.transport.links import Links
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.wire import Peer, Route

LOOK_S = 3.0  # an answer after this time does not count: the cluster answers within milliseconds


async def inspect(endpoint: str, keys: NodeKeys | None, public_key: str) -> dict[str, object]:
    """Ask the process there for its state, as `rlctl ps` does."""
    links = Links(ZmqWire("mallory", 1, keys=keys), life=1)
    events: list[str] = []
    frames: list[int] = []

    def on_frame(_route: Route, envelope: Envelope) -> bool:
        frames.append(len(envelope.body))
        return True

    links.listen(on_frame, lambda _peer, link: events.append(link.value))
    ask = encode(kind_of(Inspect()), SYSTEM, encode_body(Inspect()), mode=Mode.ASK, corr=1)
    links.send(Peer(endpoint, public_key), ask)
    await asyncio.sleep(LOOK_S)
    await links.close()
    return {"links": events, "frames": frames}


async def throw(endpoint: str, what: bytes) -> int:
    """The number of bytes that came back."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    got = b""
    try:
        writer.write(what)
        async with asyncio.timeout(LOOK_S):
            while chunk := await reader.read(1 << 20):
                got += chunk
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return len(got)


async def main(keys_dir: str, public_keys: list[str], endpoints: list[str]) -> dict[str, list[object]]:
    """Make all attempts at once."""
    keys = NodeKeys.load(keys_dir)
    request = Request(os.urandom(TOKEN_ID_BYTES), 1, 0, 1 << 16, 0)
    theft = encode_request(request, os.urandom(SECRET_BYTES))

    async def knock(endpoint: str) -> list[object]:
        return await asyncio.gather(
            inspect(endpoint, None, ""),
            *(inspect(endpoint, keys, key) for key in public_keys),
            throw(endpoint, theft),
            throw(endpoint, os.urandom(256)),
        )

    return dict(zip(endpoints, await asyncio.gather(*map(knock, endpoints)), strict=True))


if __name__ == "__main__":
    directory, *known = sys.argv[1].split(",")
    print(json.dumps(asyncio.run(main(directory, known, sys.argv[2:]))))
