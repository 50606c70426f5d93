"""BulkServer: serves ranges of published files over plain TCP.

Owns the listener, the versions and the tokens. A published file is mapped, so its bytes go from shared memory
to the kernel without a copy. Files must stay as they are while published (replace, never truncate). Content
is authorised, not encrypted. Knows no manifest: the puller checks every chunk.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

from gleaner.transport.bulk_frames import (
    MAX_CHUNK_BYTES,
    REQUEST_BYTES,
    SECRET_BYTES,
    TOKEN_ID_BYTES,
    Request,
    Status,
    decode_request,
    encode_answer,
    is_signed,
)
from gleaner.transport.bulk_partial import PartialContent
from gleaner.transport.carrier import BulkListener, Carrier, Connection
from gleaner.transport.keys import Bulk, NodeKeys
from gleaner.transport.refusal import FrameError, Refusals
from gleaner.transport.zmq_carrier import ZmqCarrier

MAX_CONNECTIONS = 256  # further ones are closed at once
MAX_TOKENS = 4096  # beyond it the oldest is forgotten
FIRST_REQUEST_S = 2.0  # a connection without a request within this time is closed
IDLE_S = 30.0  # between two requests
STALL_S = 10.0  # a puller that does not take PIECE_BYTES of its chunk in that time is dropped
PIECE_BYTES = 128 << 10


class BulkServer:
    """Answers `pull`. `await start()` on the running loop (asyncio or uvloop), `await close()` at the end.
    Beyond loopback it needs the node's keys, because tokens must travel encrypted. It also needs
    bulk="clear", because the content does not: the user must have stated that the network may read it
    (`RefusedToListen`)."""

    def __init__(
        self,
        bind_host: str = "127.0.0.1",
        port: int = 0,
        *,
        keys: NodeKeys | None = None,
        bulk: Bulk = "loopback",
        carrier: Carrier | None = None,
    ) -> None:
        self._carrier = carrier or ZmqCarrier()
        self._listening: BulkListener = self._carrier.bulk_listener(bind_host, port, keys, bulk)
        self._files: dict[int, memoryview | PartialContent] = {}
        self._tokens: dict[bytes, tuple[bytes, int | None]] = {}
        self._refusals = Refusals("bulk server")
        self._tasks: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._accepting: asyncio.Task[None] | None = None
        self._keys = keys
        self._leave_keys: Callable[[], None] | None = None
        self._served_by: dict[Connection, int] = {}  # each talk changes its own count only
        self._served_before = 0

    @property
    def endpoint(self) -> str:
        """Address for pullers, once started."""
        return self._listening.endpoint

    @property
    def refused(self) -> Counter[str]:
        """Refused input by reason."""
        return self._refusals.by_reason

    @property
    def served_bytes(self) -> int:
        """Bytes of content that were sent."""
        return self._served_before + sum(self._served_by.values())

    async def start(self) -> None:
        """Listen. Raises `CannotListen`."""
        self._listening.open()
        if self._keys is not None:
            self._leave_keys = self._keys.allowed.subscribe(self._on_keys)
        self._accepting = self._spawn(self._accept())

    def publish(self, version: int, content: Path | str | memoryview | PartialContent) -> None:
        """Serve these bytes, or those of a file, as `version` from now on. Of content that still arrives,
        serve the landed part. Raises OSError, or ValueError for an empty file."""
        if not isinstance(content, memoryview | PartialContent):
            content = self._carrier.content(content)
        self._files[version] = content

    def retire(self, version: int) -> None:
        """Stop serving a version; chunks under way are finished."""
        self._files.pop(version, None)

    def issue_token(self, version: int | None = None) -> bytes:
        """A new token, for one version or for all; send it on the control plane."""
        while len(self._tokens) >= MAX_TOKENS:
            del self._tokens[next(iter(self._tokens))]
        token_id, secret = self._carrier.secret(TOKEN_ID_BYTES), self._carrier.secret(SECRET_BYTES)
        self._tokens[token_id] = (secret, version)
        return token_id + secret

    def revoke_token(self, token: bytes) -> None:
        """Refuse a token from now on."""
        self._tokens.pop(token[:TOKEN_ID_BYTES], None)

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._leave_keys is not None:
            self._leave_keys()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()
        self._files.clear()

    def _on_keys(self, _added: frozenset[str], removed: frozenset[str]) -> None:
        """A key was revoked. A token does not show its owner, and may have been passed on, so all tokens and
        all connections are dropped. A process that is still trusted requests a new token on the control plane
        and resumes with the missing chunks; the revoked one cannot request one."""
        if not removed:
            return
        self._tokens.clear()
        for task in self._tasks:
            if task is not self._accepting:
                task.cancel()

    def _spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def _accept(self) -> None:
        while True:
            try:
                connection, address = await self._listening.accept()
            except OSError as error:  # out of descriptors, or the peer left already
                self._refusals.count("accept", "accept-failed", str(error))
                await asyncio.sleep(0.05)
                continue
            if len(self._tasks) > MAX_CONNECTIONS:
                self._refusals.count(address, "too-many-connections", f"limit {MAX_CONNECTIONS}")
                connection.close()
            else:
                self._spawn(self._serve(connection, address))

    async def _serve(self, connection: Connection, address: str) -> None:
        self._served_by[connection] = 0
        with contextlib.closing(connection):
            try:
                await connection.run(self._talk(connection, address))
            except TimeoutError:
                self._refusals.count(address, "silent", "no request, or no progress")
            except FrameError as error:
                self._refusals.count(address, error.reason, str(error))
            except OSError:
                pass  # the puller disconnected, which is normal; it uses another source or connects again
            finally:
                self._served_before += self._served_by.pop(connection)

    async def _talk(self, connection: Connection, address: str) -> None:
        """Answer requests until the puller hangs up. It may run in a thread of its own."""
        frame = memoryview(bytearray(REQUEST_BYTES))
        patience_s, status = FIRST_REQUEST_S, Status.OK
        while status is not Status.UNAUTHORIZED:
            count = await connection.receive(frame, patience_s, REQUEST_BYTES)
            if count == 0:
                return
            patience_s = IDLE_S
            request = decode_request(bytes(frame[:count]))
            status, payload = await self._look_up(connection, bytes(frame), request)
            if status not in (Status.OK, Status.NOT_YET):
                connection.tell(partial(self._refuse, address, status, request.version))
            with payload:  # an idle connection holds no version, nor does one that broke
                answer = encode_answer(status, request.version, request.tag, len(payload))
                await connection.send_content(answer, payload, STALL_S, PIECE_BYTES)
                self._served_by[connection] += len(payload)

    def _refuse(self, address: str, status: Status, version: int) -> None:
        self._refusals.count(address, status.name.lower().replace("_", "-"), f"version {version}")

    async def _look_up(
        self, connection: Connection, frame: bytes, request: Request
    ) -> tuple[Status, memoryview]:
        secret, only = self._tokens.get(request.token_id, (b"", None))
        if not secret or not is_signed(frame, secret) or only not in (None, request.version):
            return Status.UNAUTHORIZED, memoryview(b"")
        content = self._files.get(request.version)
        if isinstance(content, PartialContent) and not content.there(request.offset, request.length):
            if request.length > MAX_CHUNK_BYTES or not content.fits(request.offset, request.length):
                return Status.BAD_RANGE, memoryview(b"")
            if not await connection.on_loop(content.comes(request.offset, request.length)):
                return Status.NOT_YET, memoryview(b"")
            content = self._files.get(request.version)  # meanwhile the content may be complete, or given up
        if content is None:
            return Status.GONE, memoryview(b"")
        view = content.view if isinstance(content, PartialContent) else content
        try:
            if not _fits(request, view):
                return Status.BAD_RANGE, memoryview(b"")
            return Status.OK, view[request.offset : request.offset + request.length]
        except ValueError:  # released on the loop in this moment: it is whole, and served as that next time
            return Status.NOT_YET, memoryview(b"")


def _fits(request: Request, view: memoryview) -> bool:
    return 1 <= request.length <= MAX_CHUNK_BYTES and request.offset + request.length <= len(view)
