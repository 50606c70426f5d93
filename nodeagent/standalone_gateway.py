"""Standalone gateway: `rlctl gateway` in front of running engines, in one process.

Owns the order: settings from the first engine's answer, the tree (balancer, manager, gateway, a worker for
each engine), and its ordered end. There is no head, no job and no trainer: the engines have their own
weights. The journal is in the state directory, so a killed gateway that restarts there knows the requests
that its clients repeat.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gleaner.actors.engine.servers.foreign_facts import EngineFacts
from gleaner.actors.gateway.ask import Requests
from gleaner.actors.gateway.fleet import Failed, Fleet, FleetError, OtherModel
from gleaner.actors.gateway.gateway import Gateway, HttpEntry
from gleaner.actors.gateway.job_fleet import HoldableRequests
from gleaner.actors.gateway.model_check import ModelCheck
from gleaner.actors.gateway.own_fleet import OwnFleet
from gleaner.actors.names import GATEWAY
from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs.load import dump
from gleaner.configs.schema import Config
from gleaner.nodeagent import model_discovery
from gleaner.nodeagent.exit_codes import FAILED, OK, CannotRun, as_cannot_run
from gleaner.nodeagent.gateway_engines import PATIENT, UrlEngines, looked_at, room_of, sized
from gleaner.nodeagent.gateway_http import door_of
from gleaner.nodeagent.gateway_model import KeptModel
from gleaner.nodeagent.host import Bounds, ProcessLocation
from gleaner.nodeagent.host_services import HostServices
from gleaner.nodeagent.process_trees import ProcessContext, rollout
from gleaner.nodeagent.shutdown import Shutdown
from gleaner.nodeagent.system import open_system
from gleaner.supervisor import Context, Supervisor, child, one_for_one

RETRY_S = 1.0

log = logging.getLogger("nodeagent")


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Options of `run_gateway`.

    engines: URLs. config: settings; `gateway.listen` is the address that it serves. tokenizer: a folder, ""
    for that of the first engine, if it is on this host. printed: called with the gateway's URL and the first
    engine behind it."""

    location: ProcessLocation
    engines: Sequence[str]
    config: Config
    tokenizer: str
    announce: Callable[[str, str], None]


async def run_gateway(options: GatewayOptions, stop: Shutdown, services: HostServices) -> int:
    """Serve until `stop`. The exit code.

    Raises CannotRun, CannotListen, JournalError.
    """
    state_dir = options.location.state_dir
    services.prepare(state_dir)
    lock = services.hold(state_dir)
    stop.at_once(lock.release)
    stop.at_once(model_discovery.withdraw)
    try:
        services.open_log(options.location)
        kept = KeptModel(state_dir)
        facts = await _first(options.engines, kept.read(), stop, services)
        if facts is None:
            return OK
        kept.write(facts)
        return await _serve(options, facts, stop, services)
    finally:
        model_discovery.withdraw()
        lock.release()


async def _first(
    engines: Sequence[str], before: EngineFacts | None, stop: Shutdown, services: HostServices
) -> EngineFacts | None:
    """The facts of the first engine that answers and serves the model of `before`; None if `stop` was set
    first."""
    printed: set[str] = set()
    while not stop.is_set():
        for url in engines:
            try:
                facts = await looked_at(url, "")
            except Failed as problem:
                _tell(services, printed, f"waiting for an engine: {problem}")
                continue
            why = "" if before is None else ModelCheck(before).look(url, facts)
            if not why:
                return facts
            _tell(
                services,
                printed,
                f"engine {url} is refused: {why}; the state directory is of the other model",
            )
        await _pause(stop)
    return None


def _tell(services: HostServices, printed: set[str], line: str) -> None:
    """Each line once."""
    if line not in printed:
        printed.add(line)
        services.say(line)


async def _serve(options: GatewayOptions, facts: EngineFacts, stop: Shutdown, services: HostServices) -> int:
    config = sized(options.config, facts)
    location = replace(options.location, job="gateway")
    spec = JobSpec(run_id="gateway", run_dir="", model_dir=options.tokenizer, config=dump(config))
    place = ProcessContext(spec, config, location.node, services.adapters)
    hands = UrlEngines(config, facts, services.say)
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

    async with open_system(location, Bounds.of(config), services) as system:

        def fleet_of(ctx: Context, requests: HoldableRequests) -> OwnFleet:
            fleets[:] = [OwnFleet(ctx, requests, hands)]
            return fleets[0]

        def door(requests: Requests, fleet: Fleet) -> HttpEntry:
            """At the same port whenever it is opened again, were it any free one at first."""
            there = urls[0].removeprefix("http://") if urls else config.gateway.listen
            made = door_of(_at(config, there), facts.model, tokenizer, room=room_of(facts))
            return _AnnouncedEntry(made(requests, fleet), urls)

        tree = hands.tree = Supervisor(
            system,
            one_for_one(
                child("rollout", rollout(place)),
                child(GATEWAY, lambda: Gateway(config.gateway, door, fleet_of)),
                name="gateway",
                intensity=PATIENT,
            ),
            on_failure=failed,
        )
        await tree.start()
        adding = asyncio.get_running_loop().create_task(_add(options, hands, fleets, urls, stop, services))
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


class _AnnouncedEntry:
    """A door that stores its URL in `urls`."""

    def __init__(self, door: HttpEntry, urls: list[str]) -> None:
        self._door, self._urls = door, urls

    async def start(self) -> str:
        url = await self._door.start()
        self._urls[:] = [url]
        return url

    async def close(self) -> None:
        await self._door.close()


async def _add(
    options: GatewayOptions,
    hands: UrlEngines,
    fleets: Sequence[OwnFleet],
    urls: Sequence[str],
    stop: Shutdown,
    services: HostServices,
) -> None:
    """Add every engine as soon as it answers and serves this model; with the first one, `options.told` gets
    the gateway's URL. A refused engine is checked again, until a user removes it."""
    await fleets[0].open()
    left, refused = list(options.engines), set[str]()
    printed: set[str] = set()
    serving = False
    while left and not stop.is_set():
        for url in list(left):
            if url in refused and url not in hands.models.refused:
                left.remove(url)
                continue
            try:
                await fleets[0].add(url)
            except OtherModel as problem:
                refused.add(url)
                _tell(services, printed, f"engine {problem}")
                continue
            except FleetError as problem:
                _tell(services, printed, f"waiting for an engine: {problem}")
                continue
            left.remove(url)
            if (engine := hands.at(url)) is not None:
                services.say(f"engine {url}: {engine.facts.described()}")
            if not serving:
                serving = True
                _publish(urls[0], options.config.gateway.model_name or hands.models.expected.model)
                options.announce(urls[0], url)
        if left:
            await _pause(stop)


def _publish(url: str, model: str) -> None:
    """Have jobs of this host find the model."""
    try:
        model_discovery.publish(url, model)
    except OSError as problem:  # a home that cannot be written
        log.warning("jobs do not find this gateway by its model, only by its URL: %s", problem)


async def _pause(stop: Shutdown) -> None:
    try:
        async with asyncio.timeout(RETRY_S):
            await stop.wait()
    except TimeoutError:
        return
