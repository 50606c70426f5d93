"""Network: opens data sockets with the keys, address and limits of this process.

Owns nothing that it opened: the caller closes its socket. The carrier decides what the sockets are made of.
Every process has a `Network`, few open a data socket: the modules of token streams and of bulk transfer are
imported when one is opened.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gleaner.transport.carrier import Carrier
from gleaner.transport.key_follower import KeyState
from gleaner.transport.keys import Bulk, NodeKeys

if TYPE_CHECKING:
    from gleaner.transport.bulk import BulkServer, BulkSource, Chunk, PullResult
    from gleaner.transport.token_frame import PackedFrame
    from gleaner.transport.token_stream import StreamReceiver, StreamSender


class Network:
    """Opens token streams and bulk servers on one interface.

    Args:
        host: interface address to bind to.
        keys: CURVE keys of this node, None on loopback.
        carrier: opens the sockets; the real network's when none is given.
        bulk: where weights may travel unencrypted.
        key_state: state of this node's key directory; None without one.
    """

    def __init__(
        self,
        host: str,
        keys: NodeKeys | None,
        carrier: Carrier | None = None,
        *,
        bulk: Bulk = "loopback",
        key_state: Callable[[], KeyState] | None = None,
    ) -> None:
        self.key_state = key_state
        self._bulk = bulk
        self.host = host
        self._keys = keys
        if carrier is None:
            from gleaner.transport.zmq_carrier import ZmqCarrier

            carrier = ZmqCarrier()
        self._carrier = carrier

    def token_receiver(
        self,
        on_frame: "Callable[[PackedFrame], None]",
        have: Callable[[str, int], int | None],
        *,
        window: int,
    ) -> "StreamReceiver":
        """The manager's end of token streams, on a port of its own."""
        from gleaner.transport.token_stream import StreamReceiver

        return StreamReceiver(
            f"tcp://{self.host}:0", on_frame, have, window=window, keys=self._keys, carrier=self._carrier
        )

    def token_sender(
        self, stream: str, incarnation: int, *, ring_frames: int, on_refused: Callable[[str], None]
    ) -> "StreamSender":
        """An instance's end of its token stream."""
        from gleaner.transport.stream_sender import SenderLimits
        from gleaner.transport.token_stream import StreamSender

        return StreamSender(
            stream,
            incarnation,
            limits=SenderLimits(ring_frames),
            keys=self._keys,
            carrier=self._carrier,
            on_refused=on_refused,
        )

    async def bulk_server(self) -> "BulkServer":
        """Serves ranges of published files to every holder of a token. Raises RefusedToListen,
        CannotListen."""
        from gleaner.transport.bulk import BulkServer

        server = BulkServer(self.host, keys=self._keys, bulk=self._bulk, carrier=self._carrier)
        await server.start()
        return server

    async def pull(
        self,
        source: "BulkSource",
        version: int,
        ranges: "Sequence[Chunk]",
        into: memoryview,
        *,
        window: int,
        sockets: int,
        limit_bytes_s: float,
        deadline_s: float,
        on_chunk: "Callable[[Chunk], None]",
    ) -> "PullResult":
        """Fetch `ranges` of a published file: `gleaner.transport.bulk.pull`. Raises a PullError."""
        from gleaner.transport.bulk import pull

        return await pull(
            source,
            version,
            ranges,
            into,
            window=window,
            sockets=sockets,
            limit_bytes_s=limit_bytes_s,
            deadline_s=deadline_s,
            on_chunk=on_chunk,
            keys=self._keys,
            carrier=self._carrier,
        )
