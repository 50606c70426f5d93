"""A gateway of its own: `rlctl gateway` in front of engines that run already, in one process.

Owns the order: settings from what the first engine says, the tree (balancer, manager, gateway, an engine's
worker each), and its ordered end. There is no head, no job and no trainer: weights are those of the engines.
The journal is in the state directory, so a gateway that was killed and started again there knows the requests
that its clients ask for again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from actors.cluster.messages import JobSpec
from actors.engine.engine_facts import EngineFacts
from actors.engine.server_facts import NoServer, look
from actors.rollout.gateway.ask import Requests
from actors.rollout.gateway.fleet import Failed, Fleet, FleetError
from actors.rollout.gateway.found_weights import FoundWeights
from actors.rollout.gateway.gateway import Door, Gateway
from actors.rollout.gateway.job_fleet import Holding
from actors.rollout.gateway.own_fleet import EngineAt, OwnFleet
from configs.load import dump
from configs.schema import Config
from nodeagent.exit_codes import FAILED, OK, CannotRun, as_cannot_run
from nodeagent.gateway_door import door_of
from nodeagent.host import Bounds, Seat
from nodeagent.shutdown import Shutdown
from nodeagent.site import Site
from nodeagent.system import open_system
from nodeagent.trees import Place, rollout
from supervisor import Context, Intensity, StartFailed, Supervisor, TreeSpec, child, one_for_one

PATIENT = Intensity(restarts=10_000, within_s=60.0)
"""Of an engine's worker: an engine that is away is waited for, however long."""
RETRY_S = 1.0
MANY_SLOTS = 256  # of an engine that does not say how many requests it decodes together
CONTEXT_TOKENS = 32_768  # of one that does not say how long they may be
MAX_SLOTS = 1024
MAX_PENDING = 64  # clients wait for their first token: a server's own queue is the shorter way to it
COMMIT_MS = 2.0  # a request passes the journal three times before that token

log = logging.getLogger("nodeagent")


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """engines: URLs. config: settings; `gateway.listen` is where it serves. tokenizer: a folder, "" for that
    of the first engine, where it is on this host. told: is told where it serves,
    and the first engine behind it."""

    seat: Seat
    engines: Sequence[str]
    config: Config
    tokenizer: str
    told: Callable[[str, str], None]


class _Engines:
    """`Hands`: each engine's worker is a child of the tree."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.tree: Supervisor | None = None
        self.known: dict[str, EngineAt] = {}

    async def look(self, url: str, api_key: str) -> EngineFacts:
        try:
            return await look(url, api_key)
        except NoServer as problem:
            raise Failed(str(problem)) from problem

    async def start(self, engine: EngineAt) -> None:
        assert self.tree is not None, "the gateway was started"
        try:
            await self.tree.add(child(engine.name, self._worker_of(engine)))
        except StartFailed as problem:
            raise Failed(f"{engine.url}: {problem}") from problem

    def _worker_of(self, engine: EngineAt) -> TreeSpec:
        from actors.engine.servers import server_host
        from actors.engine.worker import RolloutWorker

        config, name = engine_config(self._config, engine), engine.name
        return one_for_one(
            child(f"{name}/transfer", lambda: FoundWeights(engine.facts.vocabulary)),
            child(
                f"{name}/engine",
                lambda: RolloutWorker(config, name, "preemptible", server_host(config, engine.api_key)),
            ),
            name=name,
            intensity=PATIENT,
        )

    async def stop(self, name: str) -> None:
        if self.tree is not None:
            await self.tree.remove(name)


def engine_config(config: Config, engine: EngineAt) -> Config:
    """The settings of one engine's worker."""
    slots = min(engine.facts.slots or MANY_SLOTS, MAX_SLOTS)
    kind = "vllm" if engine.facts.kind == "vllm" else "sglang"
    own = msgspec.structs.replace(config.engine, kind=kind, url=engine.url, slots=slots)
    return msgspec.structs.replace(config, engine=own)


def sized(config: Config, facts: EngineFacts) -> Config:
    """Settings for engines like the first: of its longest prompt, and of responses as long as its context.
    What of both fits together is the door's to say."""
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
    """For `door_of`, of engines like the first."""
    return facts.context_tokens or CONTEXT_TOKENS, facts.room or CONTEXT_TOKENS


async def run_gateway(options: GatewayOptions, stop: Shutdown, site: Site) -> int:
    """Serve until `stop`. The exit code.

    Raises CannotRun, CannotListen, JournalError.
    """
    state_dir = options.seat.state_dir
    site.prepare(state_dir)
    lock = site.hold(state_dir)
    stop.at_once(lock.release)
    try:
        site.open_log(options.seat)
        facts = await _first(options.engines, stop, site)
        return OK if facts is None else await _serve(options, facts, stop, site)
    finally:
        lock.release()


async def _first(engines: Sequence[str], stop: Shutdown, site: Site) -> EngineFacts | None:
    """What the first engine that answers says; None where `stop` came before."""
    hands = _Engines(Config())
    told: set[str] = set()
    while not stop.is_set():
        for url in engines:
            try:
                return await hands.look(url, "")
            except Failed as problem:
                if str(problem) not in told:
                    told.add(str(problem))
                    site.say(f"waiting for an engine: {problem}")
        await _pause(stop)
    return None


async def _serve(options: GatewayOptions, facts: EngineFacts, stop: Shutdown, site: Site) -> int:
    config = sized(options.config, facts)
    seat = replace(options.seat, job="gateway")
    spec = JobSpec(run_id="gateway", run_dir="", model_dir=options.tokenizer, config=dump(config))
    place = Place(spec, config, seat.node, site.fittings)
    hands = _Engines(config)
    tokenizer = Path(options.tokenizer or facts.tokenizer) if options.tokenizer or facts.tokenizer else None
    fleets: list[OwnFleet] = []
    urls: list[str] = []
    failures: list[Exception] = []

    def failed(problem: Exception) -> None:
        failures.append(problem)
        stop.set()

    def added(task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if isinstance(problem, Exception):
            failed(problem)

    async with open_system(seat, Bounds.of(config), site) as system:

        def fleet_of(ctx: Context, requests: Holding) -> OwnFleet:
            fleets[:] = [OwnFleet(ctx, requests, hands)]
            return fleets[0]

        def door(requests: Requests, fleet: Fleet) -> Door:
            """At the same port whenever it is opened again, were it any free one at first."""
            there = urls[0].removeprefix("http://") if urls else config.gateway.listen
            made = door_of(_at(config, there), facts.model, tokenizer, room=room_of(facts))
            return _Told(made(requests, fleet), urls)

        tree = hands.tree = Supervisor(
            system,
            one_for_one(
                child("rollout", rollout(place)),
                child("rollout/gateway", lambda: Gateway(config.gateway, door, fleet_of)),
                name="gateway",
                intensity=PATIENT,
            ),
            on_failure=failed,
        )
        await tree.start()
        adding = asyncio.get_running_loop().create_task(_add(options, fleets, urls, stop, site))
        adding.add_done_callback(added)
        try:
            await stop.wait()
        finally:
            adding.cancel()
            await asyncio.wait([adding])
            await tree.stop()
    if failures:
        raise as_cannot_run(failures[0]) or CannotRun(FAILED, str(failures[0]))
    log.info("stopped in order")
    return OK


def _at(config: Config, listen: str) -> Config:
    return msgspec.structs.replace(config, gateway=msgspec.structs.replace(config.gateway, listen=listen))


class _Told:
    """A door that says where it is: in `urls`."""

    def __init__(self, door: Door, urls: list[str]) -> None:
        self._door, self._urls = door, urls

    async def start(self) -> str:
        url = await self._door.start()
        self._urls[:] = [url]
        return url

    async def close(self) -> None:
        await self._door.close()


async def _add(
    options: GatewayOptions, fleets: Sequence[OwnFleet], urls: Sequence[str], stop: Shutdown, site: Site
) -> None:
    """Every engine, as soon as it answers; with the first one it is told where the gateway serves."""
    await fleets[0].open()
    left = list(options.engines)
    said: set[str] = set()
    while left and not stop.is_set():
        for url in list(left):
            try:
                await fleets[0].add(url)
            except FleetError as problem:
                if str(problem) not in said:
                    said.add(str(problem))
                    site.say(f"waiting for an engine: {problem}")
                continue
            left.remove(url)
            if len(left) == len(options.engines) - 1:
                options.told(urls[0], url)
        if left:
            await _pause(stop)


async def _pause(stop: Shutdown) -> None:
    try:
        async with asyncio.timeout(RETRY_S):
            await stop.wait()
    except TimeoutError:
        return
