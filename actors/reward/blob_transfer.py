"""BlobTransfer: blobs between the reward hosts of a job, in parts of messages.

Messages are encrypted where the cluster is, and a program is small beside weights: a data socket of its own
would gain nothing. Owns both ends. The receiver's blobs check the digest.
"""

import asyncio

from gleaner.actors.protocol.reward import BlobPart, ReadBlob
from gleaner.actors.reward.blobs import MOST_BLOB_BYTES, Blobs, NoBlob
from gleaner.supervisor import AskFailed, Context, Refused

PART_BYTES = 2**20
PART_DEADLINE_S = 5.0
BLOB_LATE_S = 30.0
TRIES = 3
"""Of one part: a host that is silent for longer counts as one that lost the blob."""
RETRY_S = 0.2


class BlobTransfer:
    """See the module. blobs: of this host; None where items have one stage."""

    def __init__(self, ctx: Context, blobs: Blobs | None) -> None:
        self._ctx, self._blobs = ctx, blobs
        self._last: tuple[str, bytes] = "", b""
        self.fetched = 0
        """Blobs that were fetched."""

    async def part(self, message: ReadBlob) -> BlobPart:
        """A part of a blob of this host. Raises Refused where it is not here."""
        if self._blobs is None:
            raise Refused(f"{self._ctx.name} has no blobs: its items have one stage")
        if self._last[0] != message.digest:  # the parts of one blob are read one after the other
            try:
                self._last = message.digest, await self._ctx.offload(self._blobs.read, message.digest)
            except NoBlob as problem:
                raise Refused(str(problem)) from problem
        content = self._last[1]
        part = content[message.offset : message.offset + PART_BYTES] if message.offset >= 0 else b""
        if message.offset + len(part) >= len(content):
            self._last = "", b""
        return BlobPart(total_bytes=len(content), content=part)

    async def fetch(self, holder: str, digest: str) -> bytes | None:
        """A blob of another host's actor; None where it cannot be had."""
        if not holder or holder == self._ctx.name:
            return None
        parts, size = list[bytes](), 0
        async with self._ctx.wait("a blob", on=holder, deadline_s=BLOB_LATE_S, go_on=True) as wait:
            while True:
                part = await self._part(holder, digest, size)
                if part is None or part.total_bytes > MOST_BLOB_BYTES:
                    return None
                wait.progress()
                parts.append(part.content)
                size += len(part.content)
                if size >= part.total_bytes:
                    self.fetched += 1
                    return b"".join(parts)
                if not part.content:
                    return None

    async def _part(self, holder: str, digest: str, offset: int) -> BlobPart | None:
        ask = ReadBlob(digest=digest, offset=offset)
        for _ in range(TRIES):
            try:
                return await self._ctx.ask(holder, ask, deadline_s=PART_DEADLINE_S, expect=BlobPart)
            except Refused as refusal:
                self._ctx.log.info("%s", refusal)
                return None
            except AskFailed as problem:
                self._ctx.log.info("blob %s of %s not received yet: %s", digest, holder, problem)
                await asyncio.sleep(RETRY_S)
        return None
