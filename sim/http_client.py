"""HTTP client of the simulated network: one call on a connection of its own.

Owns HTTP/1.1 as far as a client needs it: a request with a body, the head of the answer, a body of a given
length or in chunks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from gleaner.sim.network import SimNet
from gleaner.sim.network_path import Station
from gleaner.sim.network_tcp import SimConnection, connect

END = b"\r\n"


class BrokenAnswer(OSError):
    """The connection ended before the answer was whole."""


class HttpCall:
    """One call. `post` sends it, then `head`, then `pieces`; `close` at any time, which leaves it."""

    def __init__(self, connection: SimConnection) -> None:
        self._connection = connection
        self._held = bytearray()
        self.headers: dict[str, str] = {}

    async def head(self) -> int:
        """The status of the answer. Raises OSError."""
        while (at := self._held.find(END + END)) < 0:
            await self._more()
        lines = self._held[:at].decode("latin-1").split("\r\n")
        del self._held[: at + 4]
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        return int(lines[0].split()[1])

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises OSError; `BrokenAnswer` where it is cut."""
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            left = int(self.headers.get("content-length", "0"))
            while left:
                if not self._held:
                    await self._more()
                piece = bytes(self._held[:left])
                del self._held[: len(piece)]
                left -= len(piece)
                yield piece
            return
        while True:
            while (at := self._held.find(END)) < 0:
                await self._more()
            size = int(self._held[:at].split(b";")[0], 16)
            while len(self._held) < at + 2 + size + 2:
                await self._more()
            piece = bytes(self._held[at + 2 : at + 2 + size])
            del self._held[: at + 2 + size + 2]
            if not size:
                return
            yield piece

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    async def _more(self) -> None:
        piece = await self._connection.read()
        if not piece:
            raise BrokenAnswer("the connection ended before the answer was whole")
        self._held += piece


async def post(
    net: SimNet, station: Station, endpoint: str, path: str, headers: Mapping[str, str], body: bytes
) -> HttpCall:
    """Send a request to `endpoint` ("tcp://ADDRESS:PORT"). Raises OSError."""
    connection = await connect(net, station, endpoint, 1.0)
    call = HttpCall(connection)
    host = endpoint.removeprefix("tcp://")
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    try:
        await connection.write("\r\n".join([*lines, "", ""]).encode() + body)
    except OSError:
        call.close()
        raise
    return call
