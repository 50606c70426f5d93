"""Whom a version is pulled from, as the host that pulls it finds out.

Owns the questions to whoever published, which keeps track of the receivers (`sources`), and what is told with
them: who could not be pulled from, and who lied. Where it does not answer, any source that is named will do.
"""

import itertools

from actors.weights.images import ImageStoreError
from actors.weights.messages import Fetch, FindSource, Holds, SourceFound
from supervisor import AskFailed, Context
from transport.bulk import BadHash, SourceGone

FIND_DEADLINE_S = 5.0  # whoever published may be making the delta that is asked for
ASK_AGAIN_S = 0.5  # while it is pulled, or where nobody can serve it now
ASK_SOON_S = 0.25  # while nothing comes
NOBODY_S = 60.0  # in a row without a source: then any that is named, whoever keeps track may be wrong
RETRY_S = 0.2
QUICK_RETRIES = 3  # in a row: a source that restarts is back by then
MAX_RETRY_S = (
    3.0  # after them, where the source hangs up (it serves as many as it can), or there is no room here
)


class Lie(Exception):
    """A source said something that cannot be: of what the version is, or of where it is to be had."""


class Finding:
    """See the module. `wanted`: the version, and who has it; the first of them keeps track. `site`: of this
    host."""

    def __init__(self, ctx: Context, wanted: Fetch, site: str) -> None:
        self._ctx, self._wanted, self._site = ctx, wanted, site
        self._named = itertools.cycle(wanted.sources)
        self._excluded: dict[str, None] = {}
        self._liar = ""
        self._away = ""
        self._nobody_since_s: float | None = None

    async def find(self, asked: FindSource) -> SourceFound | None:
        """The source to pull from, and as what; None where nobody can serve it now."""
        self._away = ""
        try:
            found = await self._ctx.ask(
                self._wanted.sources[0], asked, deadline_s=FIND_DEADLINE_S, expect=SourceFound
            )
        except AskFailed as problem:
            self._ctx.log.info("nobody tells whom to pull from: %s", problem)
            return SourceFound(source=next(self._named), base=asked.base)
        if not found.source:
            return self._nobody(asked)
        self._nobody_since_s = None
        self._excluded.clear()
        self._liar = ""
        return found

    def _nobody(self, asked: FindSource) -> SourceFound | None:
        now_s = self._ctx.turn_time()
        if self._nobody_since_s is None:
            self._nobody_since_s = now_s
        if now_s - self._nobody_since_s < NOBODY_S:
            return None
        self._ctx.log.warning("nobody may serve version %d for %g s by now", asked.version, NOBODY_S)
        return SourceFound(source=next(self._named), base=asked.base)

    async def other_than(self, asked: FindSource) -> str:
        """Whom to go to from the current source, or "" where nobody says so."""
        try:
            found = await self._ctx.ask(
                self._wanted.sources[0], asked, deadline_s=ASK_AGAIN_S, expect=SourceFound
            )
        except AskFailed:
            return ""
        return found.source if found.source != asked.current else ""

    async def tell(self, asked: FindSource) -> None:
        """That all of it is here, and may be pulled from here."""
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
        """With all that is known here (`FindSource`)."""
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
        """Ask for another one, except where it is one that was named: it may be back."""
        if source and source not in self._wanted.sources:
            self._excluded[source] = None
            if isinstance(problem, BadHash | Lie):
                self._liar = source

    def incomplete(self, source: str) -> None:
        """Some of what it stands for does not answer: whoever else has that is asked for, once; then it is
        tried again."""
        self._away = source

    def pause_s(self, fruitless: int, problem: Exception) -> float:
        """Before the next attempt; drawn, so that those who failed together do not come back together."""
        if fruitless <= QUICK_RETRIES or not isinstance(problem, SourceGone | ImageStoreError):
            return RETRY_S
        most_s = min(RETRY_S * 2.0 ** (fruitless - QUICK_RETRIES), MAX_RETRY_S)
        return self._ctx.rng.uniform(most_s / 2, most_s)
