"""`SourceLookup`: source lookup of a pulling host for one version.

Owns the requests to the publisher, which tracks the receivers (`waves`). Each request also reports the
sources that failed and the source that sent false data. If the publisher does not answer, any named source
will do.
"""

import itertools

from gleaner.actors.protocol.weights import Fetch, FindSource, Holds, SourceFound
from gleaner.actors.weights.image.port import ImageStoreError
from gleaner.supervisor import AskFailed, Context
from gleaner.transport.bulk import BadHash, SourceGone

FIND_DEADLINE_S = 5.0  # the publisher may still be making the requested delta
ASK_AGAIN_S = 0.5  # while the version is pulled, or while no source can serve it
ASK_SOON_S = 0.25  # while no bytes arrive
NO_SOURCE_S = 60.0  # in a row without a source; then any named source is used: the publisher may be wrong
RETRY_S = 0.2
QUICK_RETRIES = 3  # in a row: a source that restarts is back by then
MAX_RETRY_S = 3.0  # after them, if the source hangs up (it serves as many as it can) or this host lacks space


class BadSource(Exception):
    """A source sent a false statement about the contents or the sources of a version."""


class SourceLookup:
    """Finds sources for one version. `wanted`: the version and its sources; the first of them tracks the
    receivers. `site`: of this host. `relay`: whether receivers serve receivers."""

    def __init__(self, ctx: Context, wanted: Fetch, site: str, *, relay: bool) -> None:
        self._ctx, self._wanted, self._site, self._relay = ctx, wanted, site, relay
        self._named = itertools.cycle(wanted.sources)
        self._excluded: dict[str, None] = {}
        self._liar = ""
        self._away = ""
        self._no_source_since_s: float | None = None

    async def find(self, asked: FindSource) -> SourceFound | None:
        """The source to pull from, and the form (whole or deltas); None if no source can serve the version
        now.
        """
        self._away = ""
        try:
            found = await self._ctx.ask(
                self._wanted.sources[0], asked, deadline_s=FIND_DEADLINE_S, expect=SourceFound
            )
        except AskFailed as problem:
            self._ctx.log.info("source lookup failed: %s", problem)
            return SourceFound(source=next(self._named), base=asked.base)
        if not found.source:
            return self._no_source(asked)
        self._no_source_since_s = None
        self._excluded.clear()
        self._liar = ""
        return found

    def _no_source(self, asked: FindSource) -> SourceFound | None:
        now_s = self._ctx.turn_time()
        if self._no_source_since_s is None:
            self._no_source_since_s = now_s
        if now_s - self._no_source_since_s < NO_SOURCE_S:
            return None
        self._ctx.log.warning("no source assigned: version=%d after %g s", asked.version, NO_SOURCE_S)
        return SourceFound(source=next(self._named), base=asked.base)

    def may_change(self, source: str) -> bool:
        """Whether another source may be assigned during a pull from this one: not where no receiver serves
        receivers and the publisher, which is asked, serves all."""
        return self._relay or source != self._wanted.sources[0]

    async def other_than(self, asked: FindSource) -> str:
        """The source that should replace the current one, or "" if none is assigned."""
        try:
            found = await self._ctx.ask(
                self._wanted.sources[0], asked, deadline_s=ASK_AGAIN_S, expect=SourceFound
            )
        except AskFailed:
            return ""
        return found.source if found.source != asked.current else ""

    async def tell(self, asked: FindSource) -> None:
        """Report that the whole version is here and may be pulled from this host."""
        await self._ctx.tell(self._wanted.sources[0], asked)

    def question(
        self,
        *,
        holds: tuple[Holds, ...] = (),
        base: int = -1,
        have_bytes: int,
        down_bytes_s: float,
        current: str = "",
    ) -> FindSource:
        """A `FindSource` with everything that this host knows."""
        return FindSource(
            version=self._wanted.version,
            root=self._wanted.root,
            receiver=self._ctx.address,
            holds=holds,
            base=base,
            have_bytes=have_bytes,
            down_bytes_s=down_bytes_s,
            site=self._site,
            current=current,
            excluded=(*self._excluded, *([self._away] if self._away else [])),
            liar=self._liar,
            part=self._wanted.part,
        )

    def failed(self, source: str, problem: Exception) -> None:
        """Exclude a failed source from the next lookup. A named source is not excluded: it may be back."""
        if source and source not in self._wanted.sources:
            self._excluded[source] = None
            if isinstance(problem, BadHash | BadSource):
                self._liar = source

    def incomplete(self, source: str) -> None:
        """An owner of a part that `source` serves does not answer. Exclude `source` from one lookup only."""
        self._away = source

    def pause_s(self, fruitless: int, problem: Exception) -> float:
        """The pause before the next attempt; random, so that receivers that failed together do not retry
        together.
        """
        if fruitless <= QUICK_RETRIES or not isinstance(problem, SourceGone | ImageStoreError):
            return RETRY_S
        most_s = min(RETRY_S * 2.0 ** (fruitless - QUICK_RETRIES), MAX_RETRY_S)
        return self._ctx.rng.uniform(most_s / 2, most_s)
