"""UrlEngines: the engines of a standalone gateway, each with a worker in its tree.

Owns the settings of such a worker, and the check of an engine that was away: another server may be at its URL
then.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from gleaner.actors.engine.servers.foreign_facts import EngineFacts
from gleaner.actors.engine.servers.server_facts import NoServer, look
from gleaner.actors.gateway.fleet import Failed
from gleaner.actors.gateway.folder_weights import FolderWeights
from gleaner.actors.gateway.model_check import ModelCheck
from gleaner.actors.gateway.own_fleet import EngineAt
from gleaner.configs.schema import Config
from gleaner.supervisor import Intensity, StartFailed, Supervisor, TreeSpec, child, one_for_one

PATIENT = Intensity(restarts=10_000, within_s=60.0)
"""Restart intensity of an engine's worker: it waits for an engine that is away, without limit."""
MANY_SLOTS = 256  # for an engine that does not report how many requests it decodes together
CONTEXT_TOKENS = 32_768  # for an engine that does not report its context length
MAX_SLOTS = 1024
MAX_PENDING = 64  # clients wait for their first token: a server's own queue is the shorter way to it
COMMIT_MS = 2.0  # a request passes the journal three times before that token


class UrlEngines:
    """`EngineControl`: each engine's worker is a child of the tree.

    Args:
        config: of the gateway.
        expected: of the first engine.
        say: prints a line for the user when an engine is refused or used again.
    """

    def __init__(self, config: Config, expected: EngineFacts, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self.tree: Supervisor | None = None
        self.known: dict[str, EngineAt] = {}
        self.models = ModelCheck(expected)

    def at(self, url: str) -> EngineAt | None:
        """The engine at this URL."""
        return next((engine for engine in self.known.values() if engine.url == url), None)

    async def look(self, url: str, api_key: str) -> EngineFacts:
        """See `EngineControl`."""
        return await looked_at(url, api_key)

    async def _check(self, engine: EngineAt, folder: str) -> str:
        """Why it is not to serve: it is away, or another server is at its URL now."""
        if folder:
            self.models.given(folder)
        try:
            facts = await looked_at(engine.url, engine.api_key)
        except Failed as away:
            return str(away)
        before = self.models.refused.get(engine.url, "")
        why = self.models.look(engine.url, facts, engine.facts.kind)
        if why and why != before:
            self._say(f"engine {engine.url} is refused: {why}")
        elif before and not why:
            self._say(f"engine {engine.url} is used again: {facts.described()}")
        return why

    async def start(self, engine: EngineAt) -> None:
        """See `EngineControl`."""
        assert self.tree is not None, "the gateway was started"
        try:
            await self.tree.add(child(engine.name, self._worker_of(engine)))
        except StartFailed as problem:
            raise Failed(f"{engine.url}: {problem}") from problem

    def _worker_of(self, engine: EngineAt) -> TreeSpec:
        from gleaner.actors.engine.servers.factory import server_host
        from gleaner.actors.engine.worker.settings import WorkerSettings
        from gleaner.actors.engine.worker.worker import RolloutWorker

        config, name = engine_config(self._config, engine), engine.name
        check = partial(self._check, engine)
        return one_for_one(
            child(f"{name}/transfer", lambda: FolderWeights(engine.facts.vocabulary, check)),
            child(
                f"{name}/engine",
                lambda: RolloutWorker(
                    WorkerSettings.of(config), name, "preemptible", server_host(config, engine.api_key)
                ),
            ),
            name=name,
            intensity=PATIENT,
        )

    async def stop(self, name: str) -> None:
        """See `EngineControl`."""
        if self.tree is not None:
            await self.tree.remove(name)


async def looked_at(url: str, api_key: str) -> EngineFacts:
    """The facts that the engine there reports. Raises Failed."""
    try:
        return await look(url, api_key)
    except NoServer as problem:
        raise Failed(str(problem)) from problem


def engine_config(config: Config, engine: EngineAt) -> Config:
    """The settings of one engine's worker."""
    slots = min(engine.facts.slots or MANY_SLOTS, MAX_SLOTS)
    kind = "vllm" if engine.facts.kind == "vllm" else "sglang"
    own = msgspec.structs.replace(config.engine, kind=kind, url=engine.url, slots=slots)
    return msgspec.structs.replace(config, engine=own)


def sized(config: Config, facts: EngineFacts) -> Config:
    """Settings for engines like the first: for its longest prompt, and for responses as long as its context.
    The door checks whether prompt and response fit together."""
    context, room = room_of(facts)
    return msgspec.structs.replace(
        config,
        engine=msgspec.structs.replace(config.engine, max_prompt_tokens=max(1, room - 1)),
        rollout=msgspec.structs.replace(
            config.rollout, max_new_tokens=context, max_pending=MAX_PENDING, journal_commit_ms=COMMIT_MS
        ),
        gateway=msgspec.structs.replace(
            config.gateway, routed_experts=config.gateway.routed_experts or facts.routed_experts
        ),
    )


def room_of(facts: EngineFacts) -> tuple[int, int]:
    """Context and prompt limits for `door_of`, for engines like the first."""
    return facts.context_tokens or CONTEXT_TOKENS, facts.room or CONTEXT_TOKENS
