"""`ServedWeights`: weight updates of an instance (fetch, drain, load, announce).

Owns the wanted and the served weights, and the control page of the instance. Drives no engine: the worker's
`load` does, between two turns.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gleaner.actors.engine.servers.port import LoadFailed, ServerDied
from gleaner.actors.engine.worker.update_times import Figures, UpdateTimes
from gleaner.actors.model.tensor_spec import image_bytes
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.instances import NotLoaded, Pulled, ServeNow, Serving, Withdraw, Withdrawn
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.protocol.weights import DropVersion, Fetch, Fetched
from gleaner.actors.weights.control.page import NONE, ControlPage, Page
from gleaner.configs.schema import Engine
from gleaner.supervisor import AskFailed, AskTimeout, Context, Done

TELL_DEADLINE_S = 5.0
FETCH_DEADLINE_S = 60.0
DRAIN_BEYOND_S = 30.0  # grace period until the manager has every token of the remaining requests
WEIGHTS_LATE_S = 60.0  # a longer wait is logged, each time again; nothing is given up
RETRY_S = 0.2
LOAD_TRIES, LOAD_AGAIN_S = 3, 5.0

Stage = Callable[[Fetched], Awaitable[None]]
"""Has the engine stage these weights while it decodes."""
Load = Callable[[Fetched], Awaitable[str]]
"""Has the engine load these; the reason why it still has the previous ones, or ""."""


class ServedWeights:
    """Updates the weights of one instance.

    Args:
        ctx: of the worker, whose name the manager knows.
        engine: section `engine`.
        node: this host; its TransferAgent is `<node>/transfer`.
        kind: reserved or preemptible; requests may end on the latter before newer weights are loaded
            (`engine.drain_s`).
        take: `Stage`, for the engine, while it decodes; `Load`, into the engine.
        control: the page for other processes of the host; None for no page.
    """

    def __init__(
        self,
        ctx: Context,
        engine: Engine,
        node: str,
        kind: str,
        take: tuple[Stage, Load],
        control: ControlPage | None = None,
    ) -> None:
        self._ctx, self._source = ctx, f"{node}/transfer"
        (self._stage, self._load), self._flipping = take, asyncio.Lock()
        self._kind = kind
        self._grace_s = engine.drain_s if kind == "preemptible" else 0.0
        self.times = UpdateTimes()
        self.wanted: Weights | None = None
        self.served: tuple[int | None, bytes] = (None, b"")
        """Version and root."""
        self._control = control
        if control is not None:
            ctx.at_end(control.closed)
        self._failures = (b"", 0)  # root of the last version that did not load, and number of failures
        self._page = Page() if control is None else control.left()
        self._say(self._page.begun(ctx.incarnation))
        self._number = 0  # of the newest announcement or withdrawal
        self.capacity: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """`Serving.cache_tokens` and `weight_tokens` of the engine, as it serves."""
        self._came: dict[bytes, Pulled] = {}  # by root, one at most, until it is sent to the manager

    def want(self, weights: Weights) -> None:
        """Serve these from now on; a pull of earlier ones is ended."""
        self.wanted = weights
        if not self._has(weights):
            self.times.announced(self._ctx.now())
        self._ctx.background(self._serve(weights), f"weights {weights.version}")

    def want_nothing(self) -> None:
        """Keep serving the present weights, without announcing them."""
        self.wanted = None

    async def _serve(self, weights: Weights) -> None:
        late_s = WEIGHTS_LATE_S
        async with self._ctx.wait("weights to serve", on=self._source, deadline_s=late_s, go_on=True):
            loaded = False
            while self.wanted == weights:
                if loaded or self._has(weights):
                    if await self._announced(weights.version, weights.root):
                        return
                elif (fetched := await self._fetched(weights)) is not None:
                    self._note(fetched)
                    async with self._flipping:  # a second call finds the version served
                        if self.wanted != weights or self._has(weights):
                            continue
                        self._say(self._page.preparing(weights.version, weights.root))
                        async with self.at_load(fetched):
                            await self._stage(fetched)
                        self.times.staged(self._ctx.now())
                        await self._drain()
                        if self.wanted != weights:
                            continue
                        self._say(self._page.loading())
                        why = await self._load(fetched)
                        self._say(self._page.failed(why) if why else self._page.loaded())
                    if why:
                        await self._not_loaded(weights, why)
                    loaded = not why

    def _has(self, weights: Weights) -> bool:
        return self.served == (weights.version, weights.root)

    async def _fetched(self, weights: Weights) -> Fetched | None:
        """None: not yet, or not wanted any more."""
        fetch = Fetch(version=weights.version, root=weights.root, sources=weights.sources)
        try:
            fetched = await self._ctx.ask(self._source, fetch, deadline_s=FETCH_DEADLINE_S, expect=Fetched)
        except AskTimeout:  # it is still pulled; the agent reports a failure
            self._ctx.log.info("waiting for weights: version=%d", weights.version)
        except AskFailed as problem:
            self._ctx.log.warning("weights not fetched: version=%d: %s", weights.version, problem)
            await asyncio.sleep(RETRY_S)
        else:
            self.times.fetched(fetched, self._ctx.now())
            return fetched if self.wanted == weights else None
        return None

    async def _announced(self, version: int, root: bytes) -> bool:
        """Announce the served version to the manager."""
        self._number += 1
        cache_tokens, weight_tokens = self.capacity()
        serving = Serving(
            instance=self._ctx.name,
            incarnation=self._ctx.incarnation,
            version=version,
            root=root,
            pulled=self._came.get(root),
            number=self._number,
            cache_tokens=cache_tokens,
            weight_tokens=weight_tokens,
        )
        try:
            await self._ctx.ask(MANAGER, serving, deadline_s=TELL_DEADLINE_S, expect=Done)
        except AskFailed as problem:
            self._ctx.log.info("could not announce the served weights: %s", problem)
            await asyncio.sleep(RETRY_S)
            return False
        self._came.pop(root, None)
        return True

    def withdrawal(self, grace_s: float) -> Withdraw:
        """To be sent to the manager now: what was announced before does not count any more."""
        self._number += 1
        name, incarnation = self._ctx.name, self._ctx.incarnation
        return Withdraw(instance=name, grace_s=grace_s, incarnation=incarnation, number=self._number)

    def _note(self, fetched: Fetched) -> None:
        if fetched.pulled_bytes:  # otherwise it was on the host already
            size = image_bytes(fetched.tensors)
            self._came = {fetched.root: Pulled(fetched.pulled_bytes, size, fetched.deltas)}

    async def _drain(self) -> None:
        """Let executing requests end; afterwards the manager has every token of the rest. Without a reply,
        the load ends the remaining requests."""
        if self._grace_s == 0 or self.served[0] is None:
            return
        withdraw = self.withdrawal(self._grace_s)
        deadline_s = self._grace_s + DRAIN_BEYOND_S
        try:
            await self._ctx.ask(MANAGER, withdraw, deadline_s=deadline_s, expect=Withdrawn)
        except AskFailed as problem:
            self._ctx.log.info("drain before newer weights failed: %s", problem)

    async def _not_loaded(self, weights: Weights, why: str) -> None:
        """The previous weights are still served. The manager replies with the weights to serve now: others,
        if these are given up, else these are tried again after a while. Each try may end executing requests,
        so the last one ends this instance: others could load them."""
        root, before = self._failures
        failures = before + 1 if root == weights.root else 1
        self._failures = (weights.root, failures)
        self._ctx.log.warning(
            "weight load failed: %d/%d, version=%d: %s", failures, LOAD_TRIES, weights.version, why
        )
        if await self._instead(weights, why):
            return
        if failures >= LOAD_TRIES:
            self.wanted = None  # not by a concurrent announcement either
            raise RuntimeError(f"its engine does not load weights {weights.version}: {why}")
        version, root = self.served
        if self._grace_s and version is not None:
            await self._announced(version, root)  # drained, it gets no requests before this
        await asyncio.sleep(LOAD_AGAIN_S)

    async def _instead(self, weights: Weights, why: str) -> bool:
        """Whether other weights should be served than these, which were not loaded."""
        try:
            failure = self._failure(weights.version, weights.root, why)
            now = await self._ctx.ask(MANAGER, failure, deadline_s=TELL_DEADLINE_S, expect=ServeNow)
        except AskFailed as problem:
            self._ctx.log.info("could not report the failed load: %s", problem)
            return False
        if self.wanted != weights or now.weights == weights:
            return self.wanted != weights
        if now.weights is not None and now.weights.version < weights.version:  # these are given up
            await self._ctx.tell(self._source, DropVersion(version=weights.version, root=weights.root))
        if now.weights is None:
            self.want_nothing()
        else:
            self.want(now.weights)
        return True

    def _failure(self, version: int, root: bytes, why: str, *, died: bool = False) -> NotLoaded:
        return NotLoaded(
            instance=self._ctx.name,
            incarnation=self._ctx.incarnation,
            kind=self._kind,
            version=version,
            root=root,
            why=why,
            died=died,
        )

    @asynccontextmanager
    async def at_load(self, load: Fetched) -> AsyncIterator[None]:
        """The engine loads or stages these. If the engine ends over it, the page records why, and the manager
        is notified."""
        try:
            yield
        except (LoadFailed, ServerDied) as problem:
            why, died = str(problem), isinstance(problem, ServerDied)
            self._say(self._page.failed(why))
            await self._ctx.tell(MANAGER, self._failure(load.version, load.root, why, died=died))
            raise

    def _say(self, page: Page) -> None:
        self._page = page
        if self._control is not None:
            self._control.tell(page)

    def summary(self) -> Figures:
        """The served version (-1: none yet) and its times; the versions that did not load since then, how
        often, and why.
        """
        version, page = self.served[0], self._page
        figures: Figures = {"version": NONE if version is None else version, **self.times.summary()}
        if page.failed_version != NONE:
            figures |= {"failed_version": page.failed_version, "failed_tries": page.tries}
            figures |= {"failed_why": page.why}
        return figures
