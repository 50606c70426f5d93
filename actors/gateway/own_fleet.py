"""OwnFleet: engines by URL, added and removed by hand, as are their weights.

Owns the list of engines, the pause, and the newest version; refuses engines of another model. `EngineControl`
drives the engines. Every call is idempotent.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Protocol

from gleaner.actors.engine.servers.foreign_facts import EngineFacts
from gleaner.actors.gateway.engine_url import origin
from gleaner.actors.gateway.fleet import (
    CannotLoad,
    Failed,
    FleetAway,
    OtherModel,
    PauseMode,
    UnknownWorker,
    VersionTaken,
    Worker,
)
from gleaner.actors.gateway.folder_weights import as_found, in_folder
from gleaner.actors.gateway.job_fleet import HoldableRequests, JobFleet
from gleaner.actors.gateway.model_check import ModelCheck
from gleaner.actors.names import MANAGER
from gleaner.actors.protocol.rollout import HoldBack, NotPublished, PublishVersion
from gleaner.supervisor import AskFailed, AskTimeout, Context, Done, Message, Refused

HOLD_S = 10.0  # the manager resumes by itself this long after this fleet has died
RENEW_S = 3.0
SERVED_S = 660.0  # for the first engine to serve new weights; the manager allows 600
MAX_ENGINES = 1024


@dataclass(frozen=True, slots=True)
class EngineAt:
    """An engine by URL; `name` is its node here."""

    name: str
    url: str
    api_key: str
    facts: EngineFacts


class EngineControl(Protocol):
    """Drives engines, and outlives the fleet that selects them."""

    @property
    def known(self) -> dict[str, EngineAt]:
        """The engines in use, by name."""

    @property
    def models(self) -> ModelCheck:
        """Which engines serve the model of this gateway."""

    async def look(self, url: str, api_key: str) -> EngineFacts:
        """The facts that the engine there reports. Raises Failed if none answers."""

    async def start(self, engine: EngineAt) -> None:
        """Drive it from now on; wait for it while it is away."""

    async def stop(self, name: str) -> None:
        """Release it: its requests go on elsewhere."""


class OwnFleet(JobFleet):
    """See the module, and `fleet.Fleet`."""

    def __init__(self, ctx: Context, requests: HoldableRequests, hands: EngineControl) -> None:
        super().__init__(ctx, requests)
        self._hands = hands
        self._engines, self._models = hands.known, hands.models
        self._paused: PauseMode | None = None
        self._changing = asyncio.Lock()
        self._updating = asyncio.Lock()

    async def open(self) -> None:
        """Publish what the engines serve, if nothing is published yet. Retries until the manager accepts."""
        async with self._ctx.wait("a manager", on=MANAGER, deadline_s=HOLD_S, go_on=True):
            while True:
                try:
                    if (await self.versions()).published is None:
                        await self._publish(PublishVersion(weights=as_found(0)))
                    return
                except (FleetAway, AskFailed) as problem:
                    self._ctx.log.info("no weights published yet: %s", problem)
                    await asyncio.sleep(0.1)

    async def workers(self) -> list[Worker]:
        """Engines that registered, those that are waited for, and those that are refused."""
        known = {one.id: one for one in await super().workers()}
        found = []
        for name, engine in self._engines.items():
            one = known.get(f"{name}-engine")
            if one is None:
                one = Worker(
                    id=name,
                    url=engine.url,
                    incarnation=0,
                    kind=engine.facts.kind,
                    healthy=False,
                    version=None,
                    running=0,
                    waiting=0,
                )
            refused = self._models.refused.get(engine.url, "")
            found.append(replace(one, id=name, url=engine.url, kind=engine.facts.kind, refused=refused))
        urls = {one.url for one in found}
        return found + [refused_at(url, why) for url, why in self._models.refused.items() if url not in urls]

    async def add(self, url: str, api_key: str = "") -> Worker:
        """See `Fleet`."""
        at = origin(url)
        async with self._changing:
            if self._named(at) is not None:
                if why := self._models.refused.get(at):
                    raise OtherModel(f"{at} is refused: {why}")
            else:
                if len(self._engines) >= MAX_ENGINES:
                    raise Failed(f"{MAX_ENGINES} engines are in use; remove one first")
                facts = await self._hands.look(at, api_key)
                if why := self._models.look(at, facts):
                    self._ctx.log.warning("engine %s is refused: %s", at, why)
                    raise OtherModel(f"{at} is refused: {why}")
                free = next(name for n in range(1, MAX_ENGINES + 1) if (name := f"e{n}") not in self._engines)
                engine = EngineAt(free, at, api_key, facts)
                await self._hands.start(engine)
                self._engines[engine.name] = engine
                self._ctx.log.info("engine %s at %s: %s", free, at, facts.described())
        return next(one for one in await self.workers() if one.url == at)

    async def remove(self, worker: str) -> None:
        """See `Fleet`."""
        async with self._changing:
            name = worker if worker in self._engines else self._named(origin(worker))
            refused = self._models.forget(origin(worker) if name is None else self._engines[name].url)
            if name is None:
                if refused:
                    return
                raise UnknownWorker(f"{worker}: no engine of this gateway; it has {self._list()}")
            await self._hands.stop(name)
            del self._engines[name]

    async def pause(self, mode: PauseMode) -> int:
        """See `Fleet`. keep takes back the requests of all engines, so nothing is made until `resume`."""
        first = self._paused is None
        self._paused = mode
        await self._hold(HOLD_S, take_back=mode == "keep")
        if first:
            self._ctx.background(self._renew(), "pause")
        if mode == "keep":
            under_way = self._requests.under_way
            self._requests.hold()
            return under_way
        return await super().pause(mode)

    async def resume(self) -> None:
        """See `Fleet`."""
        self._paused = None
        await super().resume()
        await self._hold(0.0)

    async def update_weights(self, path: str, version: int | None) -> int:
        """See `Fleet`."""
        if not path:
            raise Failed("no path: name the folder of a checkpoint that every engine can read")
        async with self._updating:
            if version is None:
                seen = await self._look()
                known = [] if seen.published is None else [seen.published]
                version = 1 + max([*known, *(one.version for one in seen.failed)], default=-1)
            weights = in_folder(version, path)
            await self._loaded(PublishVersion(weights=weights, ascending=True, tried=True))
        return version

    async def _loaded(self, message: PublishVersion) -> None:
        """Publish weights and wait until one engine serves them. Raises CannotLoad, VersionTaken, Failed,
        FleetAway."""
        version = message.weights.version
        try:
            answer = await self._ctx.ask(MANAGER, message, deadline_s=SERVED_S, expect=Message)
        except Refused as refusal:
            raise VersionTaken(str(refusal)) from refusal
        except AskTimeout as late:
            raise Failed(f"no engine served version {version} within {SERVED_S:g} s") from late
        except AskFailed as problem:
            raise FleetAway(f"{MANAGER}: {problem}") from problem
        if isinstance(answer, NotPublished):
            what = f"version {version} is not served, engines keep what they have: {answer.why}"
            raise Failed(what) if answer.lost else CannotLoad(what)

    async def _renew(self) -> None:
        """Renew the hold while paused: the hold of a gateway that died expires."""
        while self._paused is not None:
            await asyncio.sleep(RENEW_S)
            try:
                if self._paused is not None:
                    await self._hold(HOLD_S)
            except FleetAway as problem:
                self._ctx.log.info("pause not renewed: %s", problem)

    async def _hold(self, for_s: float, take_back: bool = False) -> None:
        try:
            hold = HoldBack(for_s=for_s, take_back=take_back)
            await self._ctx.ask(MANAGER, hold, deadline_s=RENEW_S, expect=Done)
        except AskFailed as problem:
            raise FleetAway(f"{MANAGER}: {problem}") from problem

    async def _publish(self, message: PublishVersion) -> None:
        await self._ctx.ask(MANAGER, message, deadline_s=RENEW_S, expect=Done)

    def _named(self, url: str) -> str | None:
        return next((name for name, engine in self._engines.items() if engine.url == url), None)

    def _list(self) -> str:
        return ", ".join(f"{name} ({engine.url})" for name, engine in self._engines.items()) or "none"


def refused_at(url: str, why: str) -> Worker:
    """An engine that was never used."""
    return Worker(
        id=url,
        url=url,
        incarnation=0,
        kind="",
        healthy=False,
        version=None,
        running=0,
        waiting=0,
        refused=why,
    )
