"""Run on a host that nobody trusts: knock at doors and print, as JSON, all that was got there.

    python stranger.py KEYS,HEAD_KEY,... ENDPOINT...

KEYS is a key directory that nobody knows; the rest are public keys of the cluster, which are no secret. Each
door gets a control message without keys, one under each of those public keys, a pull of weights with an
invented token, and noise. Told of each: link events, frames, bytes.
"""

import asyncio
import json
import os
import sys

from supervisor.message import encode_body, kind_of
from supervisor.system_messages import SYSTEM, Inspect
from transport.bulk_frames import SECRET_BYTES, TOKEN_ID_BYTES, Request, encode_request
from transport.envelope import Envelope, Mode, encode
from transport.keys import NodeKeys
from transport.mesh import ZmqWire
from transport.wire import Peer

LOOK_S = 3.0  # what is not answered by then is not answered: the cluster answers within milliseconds


async def say(endpoint: str, keys: NodeKeys | None, public_key: str) -> dict[str, object]:
    """Ask the process there to show itself, as `rlctl ps` does."""
    wire = ZmqWire("mallory", 1, keys=keys)
    links: list[str] = []
    frames: list[int] = []
    wire.listen(
        lambda _route, got: frames.extend(map(len, got)), lambda _peer, link: links.append(link.value)
    )
    ask = Envelope(kind=kind_of(Inspect()), mode=Mode.ASK, dst=SYSTEM, corr=1, body=encode_body(Inspect()))
    wire.send(Peer(endpoint, public_key), [encode(ask)])
    await asyncio.sleep(LOOK_S)
    await wire.close()
    return {"links": links, "frames": frames}


async def throw(endpoint: str, what: bytes) -> int:
    """Bytes that came back."""
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
    """Everything at once."""
    keys = NodeKeys.load(keys_dir)
    request = Request(os.urandom(TOKEN_ID_BYTES), 1, 0, 1 << 16, 0)
    theft = encode_request(request, os.urandom(SECRET_BYTES))

    async def knock(endpoint: str) -> list[object]:
        return await asyncio.gather(
            say(endpoint, None, ""),
            *(say(endpoint, keys, key) for key in public_keys),
            throw(endpoint, theft),
            throw(endpoint, os.urandom(256)),
        )

    return dict(zip(endpoints, await asyncio.gather(*map(knock, endpoints)), strict=True))


if __name__ == "__main__":
    directory, *known = sys.argv[1].split(",")
    print(json.dumps(asyncio.run(main(directory, known, sys.argv[2:]))))
