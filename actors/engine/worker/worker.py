"""`RolloutWorker`: an instance, which drives one engine.

It streams decoded tokens and serves the weights that the manager assigns. Owns the engine, the ring of
unacknowledged frames and the registration with the manager. It survives the manager: without acknowledgements
it decodes on until the ring is full, and re-sends to the next manager. It does not survive its own death; its
requests continue elsewhere from the collected tokens.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gleaner.actors.engine.worker.expert_report import ExpertReporter
from gleaner.actors.engine.worker.kept_requests import KeptRequests
from gleaner.actors.engine.worker.port import (
    AnyHost,
    AwaitedHost,
    EngineHost,
    StepCommands,
    StepResult,
)
from gleaner.actors.engine.worker.preparation import Preparation
from gleaner.actors.engine.worker.refusal_report import RefusalReporter
from gleaner.actors.engine.worker.served_weights import ServedWeights
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.throughput_report import ThroughputReporter
from gleaner.actors.engine.worker.turn_check import check_turn
from gleaner.actors.names import BALANCER, MANAGER
from gleaner.actors.protocol.balancer import InstanceHalved
from gleaner.actors.protocol.instances import (
    Abort,
    Dispatch,
    Registered,
    RegisterInstance,
    ServeWeights,
    StillRegistered,
    Withdrawn,
)
from gleaner.actors.protocol.rollout import Weights
from gleaner.actors.protocol.training import CloseSeeding, HalveSeeding, OpenSeeding
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.control.page import ControlPage
from gleaner.supervisor import (
    Actor,
    AskFailed,
    Deferred,
    Done,
    Fenced,
    Refused,
    Terminated,
    WaitTimeout,
    WorkDeadlines,
    handles,
)
from gleaner.transport.token_stream import StreamRefused
from gleaner.transport.wire import Peer

REGISTER_DEADLINE_S = 5.0
HAND_OVER_DEADLINE_S = 30.0  # for one request
MANAGER_LATE_S = 30.0  # longer waits than these are logged, each time again; nothing is given up
LOAD_LATE_S = 60.0
TURN_LATE_S = 120.0  # a server that starts takes minutes
CREDIT_LATE_S = 10.0
RETRY_S = 0.2


class RolloutWorker(Actor):
    """An instance of the rollout. Instance name: `<node>/engine`, the actor's own name.

    Args:
        settings: sections `engine`, `limits` and `liveness`.
        node: this host; its TransferAgent is `<node>/transfer`.
        kind: reserved or preemptible.
        host: the engine; this worker's own.
        page: where other processes read the served weights; this worker's own too.
    """

    def __init__(
        self, settings: WorkerSettings, node: str, kind: str, host: AnyHost, page: ControlPage | None = None
    ) -> None:
        self._settings = settings
        self._node = node
        self._kind = kind
        self._host, self._page = host, page
        self._deadlines = WorkDeadlines(settings.liveness.work_s, settings.liveness.first_work_s)
        # Looked at once: to ask a protocol whether it is filled takes as long as a short turn.
        self._turn: Callable[[StepCommands], Awaitable[StepResult]] = (
            partial(self._awaited, host) if isinstance(host, AwaitedHost) else partial(self._computed, host)
        )
        self._commands, self._load_failed = StepCommands(), ""
        self._tokens = 0
        self._epoch = ""
        self._received = 0
        self._wake = asyncio.Event()
        self._loaded = asyncio.Event()
        self._manager_lost = asyncio.Event()
        self._closing = False
        self._half = False  # half of its engines serve
        self._cut = asyncio.Event()  # a turn has carried out the last order on halves

    async def on_start(self) -> None:
        self._sender = self.ctx.network.token_sender(
            self.ctx.name,
            self.ctx.incarnation,
            ring_frames=self._settings.limits.ring_frames,
            on_refused=lambda why: self.ctx.crash(Fenced(f"the manager refused the stream: {why}")),
        )
        self.ctx.at_end(self._sender.close)
        self.ctx.at_end(self._let_go)
        self._preparation = Preparation(self.ctx, self._node, self._host)
        drains, take = self._kind == "preemptible", (self._preparation.stage, self._load)
        self._weights = ServedWeights(
            self.ctx, self._settings.engine, self._node, self._kind, take, self._page
        )
        self._weights.capacity = lambda: (self._host.cache_tokens, self._host.weight_tokens)
        self._kept_requests = KeptRequests(self.ctx, self._settings.engine, self._sender, drains)
        self._throughput_reporter = ThroughputReporter(self.ctx, self._settings.liveness.beat_s)
        self._experts = ExpertReporter(self.ctx)
        self._refusals = RefusalReporter(self.ctx)
        self.ctx.background(self._experts.run(), "experts")
        self.ctx.background(self._stay_registered(), "registration")
        self.ctx.background(self._decode(), "decode")

    async def _let_go(self) -> None:
        self._host.close()
        if isinstance(self._host, AwaitedHost):
            await self._host.closed()

    # -- the manager --

    async def _stay_registered(self) -> None:
        """Register; register again with every new incarnation of the manager, or if it forgot this
        instance.
        """
        while True:
            self._manager_lost.clear()
            self._epoch = ""  # messages on their way to us are void from here on
            reply = await self._register()
            self._epoch = reply.epoch
            self.ctx.watch(reply.manager)
            self._sender.connect(Peer(reply.stream_endpoint, reply.stream_key))
            if reply.weights is not None:
                self._want(reply.weights)
            elif self._kind == "reserved" and self._weights.wanted is not None and not self._closing:
                self._weights.want(self._weights.wanted)
            while await self._still_registered():
                continue

    async def _register(self) -> Registered:
        """Register once there is a manager."""
        ask = RegisterInstance(
            instance=self.ctx.name,
            worker=self.ctx.address,
            kind=self._kind,
            slots=self._settings.engine.slots,
            received=self._received,
            engines=self._host.engines,
            cache_tokens=self._host.cache_tokens,
            device=self._host.device,
        )
        async with self.ctx.wait("a manager", on=MANAGER, deadline_s=MANAGER_LATE_S, go_on=True):
            while True:
                try:
                    return await self.ctx.ask(MANAGER, ask, deadline_s=REGISTER_DEADLINE_S, expect=Registered)
                except Refused as refusal:
                    raise Fenced(str(refusal)) from refusal
                except AskFailed as problem:
                    self.ctx.log.info("waiting for the manager: %s", problem)
                    await asyncio.sleep(RETRY_S)

    async def _still_registered(self) -> bool:
        """Wait a while, then ask the manager; False at once if the manager has ended."""
        if await self.ctx.idle(self._manager_lost, self._settings.liveness.check_s):
            return False
        ask = StillRegistered(instance=self.ctx.name, incarnation=self.ctx.incarnation, epoch=self._epoch)
        try:
            await self.ctx.ask(MANAGER, ask, deadline_s=REGISTER_DEADLINE_S, expect=Done)
        except Refused as refusal:
            self.ctx.log.info("%s", refusal)
            return False
        except AskFailed as problem:
            self.ctx.log.info("no manager to ask: %s", problem)
        return True

    async def on_terminated(self, event: Terminated) -> None:
        self.ctx.log.info("the manager %s#%d ended: %s", event.name, event.incarnation, event.cause)
        self._manager_lost.set()

    # -- weights --

    @handles(ServeWeights)
    async def serve_weights(self, message: ServeWeights) -> None:
        self._want(message.weights)

    def _want(self, weights: Weights) -> None:
        self._weights.want(weights)
        self._preparation.begin(weights)

    @handles(OpenSeeding)
    async def open_seeding(self, message: OpenSeeding) -> Done:
        """The trainer on this host lends its device: serve the version that it published here."""
        self._closing = False
        if self._half:
            self._serve_with_half(False)
        source = f"{self._node}/transfer"
        self._weights.want(Weights(version=message.version, root=message.root, sources=(source,)))
        return Done()

    @handles(HalveSeeding)
    async def halve_seeding(self, message: HalveSeeding) -> Deferred:
        """Half of the devices go back to the trainer."""
        if not self._host.halves:
            raise Refused(
                f"the engines of {self.ctx.name} cannot be halved: it needs an even number of copies of the "
                "model, or of engine.threads"
            )
        deferred = Deferred()
        self._serve_with_half(True)
        self._cut.clear()
        self._hurry()
        self.ctx.background(self._halve(deferred), "halve")
        return deferred

    def _serve_with_half(self, half: bool) -> None:
        self._half = self._commands.half = half
        self.ctx.background(self._tell_halved(half), "notify the load balancer")

    async def _tell_halved(self, half: bool) -> None:
        halved = InstanceHalved(instance=self.ctx.name, incarnation=self.ctx.incarnation, half=half)
        await self.ctx.tell(BALANCER, halved)

    async def _halve(self, deferred: Deferred) -> None:
        async with self.ctx.wait(
            "its engine to halve", on=self.ctx.name, deadline_s=TURN_LATE_S, go_on=True
        ) as wait:
            await wait.look(self._cut)
        deferred.answer(Done())

    @handles(CloseSeeding)
    async def close_seeding(self, message: CloseSeeding) -> Deferred:
        self._closing = True
        self._weights.want_nothing()
        deferred = Deferred()
        self.ctx.background(self._hand_over(deferred), "hand over")
        return deferred

    async def _hand_over(self, deferred: Deferred) -> None:
        withdraw = self._weights.withdrawal(0.0)
        late_s = self._settings.liveness.successor_s
        try:
            async with self.ctx.wait("a hand-over", on=MANAGER, deadline_s=late_s):
                while self._closing:
                    try:
                        await self.ctx.ask(
                            MANAGER, withdraw, deadline_s=HAND_OVER_DEADLINE_S, expect=Withdrawn
                        )
                        break
                    except AskFailed as problem:
                        self.ctx.log.info("hand-over not finished: %s", problem)
                        await asyncio.sleep(RETRY_S)
        except WaitTimeout as late:
            deferred.answer(Refused(f"the requests of {self.ctx.name} were not handed over: {late}"))
            return
        deferred.answer(Done())

    async def _load(self, fetched: Fetched) -> str:
        """Load weights before the engine's next turn. The reason why the previous ones are still served, or
        "".
        """
        serves = self._weights.served[0] is not None
        self._commands.load, self._commands.keep = fetched, serves and self._kept_requests.wanted
        self._loaded.clear()
        self._hurry()
        async with self.ctx.wait(
            "its engine to load", on=self.ctx.name, deadline_s=LOAD_LATE_S, go_on=True
        ) as wait:
            await wait.look(self._loaded)
        return self._load_failed

    # -- requests --

    @handles(Dispatch)
    async def dispatch(self, message: Dispatch) -> None:
        if message.epoch != self._epoch:
            raise Refused(f"{self.ctx.name} is registered under epoch {self._epoch}, not {message.epoch}")
        self._received = max([self._received, *(work.ticket for work in message.work)])
        self._commands.adds.append((message.version, message.work))
        self._hurry()

    @handles(Abort)
    async def abort(self, message: Abort) -> None:
        self._commands.abort(message.tickets)
        self._hurry()

    def _hurry(self) -> None:
        """Wake the decode loop or its host, whichever waits: there are orders."""
        self._wake.set()
        self._host.hurry()

    async def _decode(self) -> None:
        """Loop: a turn of the engine, then a frame on the stream. A full ring pauses it."""
        idle = True
        while True:
            if idle and not self._commands:
                self._wake.clear()
                await self.ctx.idle(self._wake)
            try:
                await self._room()
            except StreamRefused as refused:
                raise Fenced(str(refused)) from refused
            commands, self._commands = self._commands, StepCommands()
            began_s = self.ctx.now()
            if commands.load is None:
                turn = await self._turn(commands)
            else:
                turn = await self._loading(commands, commands.load)
            if commands.half is not None:
                self._cut.set()
            check_turn(turn, commands.load, self._weights.served, self._received)
            idle = turn.idle
            if turn.experts:
                self._experts.add(turn.experts)
            if turn.output is not None and len(turn.output):
                output = turn.output
                self._sender.send(output.tickets, output.tokens, output.logprobs, output.flags)
                self._tokens += len(output)
            if commands.load is None:
                self._throughput_reporter.ended(turn.work, began_s)
            self._refusals.ended(turn.refusals, turn.version)
            if commands.keep and not turn.load_failed and turn.version is not None:
                self._commands.abort(await self._kept_requests.to_end(turn.kept, turn.version, turn.root))
            if commands.load is not None:
                self._weights.served, self._load_failed = (turn.version, turn.root), turn.load_failed
                self._weights.times.loaded(began_s, self.ctx.now(), self.ctx.log)
                self._loaded.set()

    async def _loading(self, commands: StepCommands, load: Fetched) -> StepResult:
        async with self._weights.at_load(load):
            return await self._turn(commands)

    async def _awaited(self, host: AwaitedHost, commands: StepCommands) -> StepResult:
        async with self.ctx.wait("its engine", on=self.ctx.name, deadline_s=TURN_LATE_S, go_on=True):
            return await host.awaited_turn(commands)

    async def _computed(self, host: EngineHost, commands: StepCommands) -> StepResult:
        return await self.ctx.offload_within(self._deadlines, host.turn, commands)

    async def _room(self) -> None:
        """Wait until the stream has free capacity for a frame; the manager's acknowledgements grant it."""
        if self._sender.full:
            async with self.ctx.wait(
                "credit of its stream", on=MANAGER, deadline_s=CREDIT_LATE_S, go_on=True
            ):
                await self._sender.writable()

    def summary(self) -> dict[str, str | int | float]:
        return {
            **self._weights.summary(),
            "rows": self._tokens,
            "unacknowledged": self._sender.unacknowledged,
            "frames_sent_again": self._sender.resent,
            **(self._preparation.figures | self._kept_requests.figures),
        }
