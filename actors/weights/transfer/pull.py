"""`Pulls`: transfers of a version's bytes from a source, with counts and rates.

Owns the counts. `fetch` chooses the bytes and the source.
"""

from collections.abc import Sequence

from gleaner.actors.weights.transfer.payload import Payload
from gleaner.actors.weights.transfer.source_lookup import BadSource
from gleaner.configs.schema import Weights
from gleaner.supervisor import Context, Waiting
from gleaner.transport.bulk import BulkSource, Chunk, PullError

CHUNK_DEADLINE_S = 60.0  # until the next chunk; 4 MiB in that time are a link of 70 KB/s
MEASURED_BYTES = 8 << 20  # a shorter pull does not measure the link


class Pulls:
    """Counts the transfers of this host. `down_bytes_s`: the highest receive rate of this host; 0 for none
    yet. `resumed`: pulls that resumed a partial payload; `bad_chunks`: chunks that arrived with a wrong hash.
    """

    def __init__(self, ctx: Context, settings: Weights, down_bytes_s: float) -> None:
        self._ctx, self._settings = ctx, settings
        self.down_bytes_s = down_bytes_s
        self.pulled_bytes = 0
        self.resumed = 0
        self.bad_chunks = 0

    async def all_of(
        self, payloads: Sequence[Payload], endpoint: str, tokens: Sequence[bytes], fetching: Waiting
    ) -> None:
        """Pull the missing chunks of each payload, one payload after the other, from one source. Raises
        `BadSource`, `PullError`.
        """
        async with self._ctx.wait(
            "a bulk pull", on=endpoint, deadline_s=CHUNK_DEADLINE_S, go_on=True
        ) as wait:
            for one, token in zip(payloads, tokens, strict=True):
                await self.one(one, BulkSource(endpoint, token), wait, fetching)

    async def one(
        self,
        one: Payload,
        source: BulkSource,
        wait: Waiting,
        fetching: Waiting,
        share: Sequence[Chunk] | None = None,
    ) -> None:
        """Pull the missing chunks of a payload, or of `share` of it. `wait` is for the next chunk, `fetching`
        for the version. Raises `BadSource`, `PullError`."""
        left = one.left if share is None else share
        self.resumed += bool(one.done and left)

        def come(chunk: Chunk) -> None:
            one.landed(chunk)
            self.pulled_bytes += chunk.length
            wait.progress()
            fetching.progress()

        try:
            result = await self._ctx.network.pull(
                source,
                one.key,
                left,
                one.into,
                window=self._settings.window,
                sockets=self._settings.pull_sockets,
                limit_bytes_s=self._settings.pull_limit_bytes_s,
                deadline_s=CHUNK_DEADLINE_S,
                on_chunk=come,
            )
        except PullError as problem:
            self.bad_chunks += problem.wrong_chunks
            raise
        except ValueError as problem:
            raise BadSource(f"{source.endpoint!r} is nothing to pull from: {problem}") from problem
        self.bad_chunks += result.retried_chunks
        if result.received_bytes >= MEASURED_BYTES and result.seconds > 0:
            rate_bytes_s = result.received_bytes / result.seconds
            self.down_bytes_s = max(self.down_bytes_s, rate_bytes_s)  # the source may share its link
