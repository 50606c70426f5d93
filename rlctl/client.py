"""The client library: talk to the actors of a cluster from outside of it.

    async with connect("tcp://10.0.0.1:7700", keys="keys/laptop", head_key=KEY) as cluster:
        job = await cluster.ask("cluster/scheduler", JobStatus(), expect=JobIs, deadline_s=2.0)

Owns an actor system without actors: names resolve through the head's registry, asks are re-sent under one
key until their deadline. To read an answer its message type must be imported.
"""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Never, TypeVar

from nodeagent.cluster_view import ClusterView, no_head
from nodeagent.defaults import DEADLINE_S
from nodeagent.files import find_agent
from nodeagent.wall_clock import wall_ms
from rlctl.client_waits import WAIT_S
from rlctl.errors import nothing
from rlctl.runs import RunDir
from supervisor import ActorSystem, Address, AskFailed, Health, Incarnations, JournalError, Message, Refused
from supervisor.health import Pulse
from supervisor.journal import Replayed
from supervisor.network import Network
from transport.keys import NodeKeys
from transport.mesh import ZmqWire
from transport.wire import Peer

if TYPE_CHECKING:  # most commands only look: what generates and publishes is imported when it is used
    from actors.rollout.single_messages import Generate, Generated, VersionNotReady
    from rlctl.publishing import ModelConfig, Publication, Publishing, State
    from rlctl.publishing_parts import OwnParts, Ranks

R = TypeVar("R", bound=Message)

MANAGER = "rollout/manager"
LOOPBACK = "tcp://127.0.0.1:0"


class Cluster(ClusterView):
    """What a client may do. Asks raise `AskTimeout`, `Unreachable`, `Overloaded` or `Refused`."""

    def __init__(self, system: ActorSystem, heads: Sequence[Peer]) -> None:
        super().__init__(system, heads)
        self._publishing: Publishing | None = None

    async def find(self, name: str, deadline_s: float = DEADLINE_S) -> Address:
        """Who holds `name`, with its incarnation. Raises AskTimeout where nobody does."""
        return await self._system.resolve(name, deadline_s)

    async def generate(self, request: "Generate") -> "Generated | VersionNotReady":
        """Let the instances of the job continue a prompt; see docs/versions.md. Asked again with the same id
        and contents it is the same request, also over the death of the manager. Raises Refused where the id
        stands for other contents, or the prompt is too long."""
        from actors.rollout.single_messages import Generated, VersionNotReady

        key = f"generate/{request.id}/{request.attempt}/{request.accepted}"
        deadline_s = request.wait_s + request.deadline_s + DEADLINE_S
        answer: Message = await self.ask(MANAGER, request, expect=Message, deadline_s=deadline_s, key=key)
        if isinstance(answer, Generated | VersionNotReady):
            return answer
        raise Refused(f"{MANAGER} answered {type(answer).__name__}")

    async def publish(
        self,
        weights: "State | Path | str",
        version: int,
        *,
        config: "ModelConfig" = None,
        host: str = "",
        wait_s: float = WAIT_S,
        progress: Callable[[int, int], None] | None = None,
        ranks: "Ranks | None" = None,
        parts: "OwnParts | None" = None,
        model_changed: bool = False,
    ) -> "Publication":
        """Have the instances of a job serve these weights as `version`; docs/weights.md, "From your own
        trainer". It returns when they are copied into the shared memory of this host, whose agent does the
        rest: from then on the tensors may change. The version before is waited for first.

        Args:
            weights: a state dict (dense tensors of any dtype, on any device, contiguous or not), or the
                folder of a checkpoint (safetensors, one file or many with their index).
            version: higher than those before; the same bytes under the same number again are fine.
            config: the model's config.json; needed once for state dicts, a folder has its own.
            host: whose agent serves it, where several are on this machine; "" for a reserved one.
            wait_s: for that agent, when the job has just begun.
            progress: told bytes copied and bytes in all, from another thread.
            ranks: of a sharded trainer, which rank this is; default: as torch.distributed and torchrun say.
                Every rank publishes what it has of each version, and the version is one when all have.
            parts: what of the image's tensors the rank has, where they are not DTensors, which say so.
            model_changed: tensors may have other names, shapes or dtypes than those of the version before.

        Raises: CannotPublish, also where instances could not load an earlier version of this client's;
            AskTimeout, Unreachable or Overloaded where the cluster does not answer."""
        from rlctl.publishing import Publishing

        if self._publishing is None:
            self._publishing = Publishing(self)
        return await self._publishing.publish(
            weights,
            version,
            config=config,
            host=host,
            wait_s=wait_s,
            progress=progress,
            ranks=ranks,
            parts=parts,
            model_changed=model_changed,
        )

    async def tell(self, to: Address | str, message: Message) -> None:
        """Tell an actor, at most once and without an answer."""
        await self._system.tell(to, message)

    async def probe(self, deadline_s: float = DEADLINE_S) -> None:
        """Ask the head for a sign of life. Raises CommandError (exit code 3) where there is none."""
        try:
            await self.names(deadline_s=deadline_s)
        except AskFailed as problem:
            raise nothing(no_head(self.head.endpoint, problem)) from problem

    async def head_hung(self, health: Health, cpu_s: Callable[[], float]) -> str:
        """Check the health of the head's process for as long as it is well; why it is not. `cpu_s`: the
        processor seconds that it has used."""
        links, clock = self._system.links, self._system.turn_clock
        pulse, heard_s = Pulse(health, clock.now()), -math.inf
        while True:
            await asyncio.sleep(health.beat_s)
            newest_s = links.heard_s(self.head)
            if newest_s > heard_s:
                heard_s = newest_s
                pulse.beat(clock.now())
            if cause := pulse.look(clock.now(), cpu_s):
                return cause
            links.ask_life(self.head)  # without a link there is nobody to ask: the next question dials


@asynccontextmanager
async def connect(
    endpoint: str, keys: NodeKeys | Path | str | None = None, *, head_key: str = ""
) -> AsyncIterator[Cluster]:
    """Join the cluster of the head at `endpoint` ("tcp://host:port") as a client.

    keys: this client's own, or the directory of them; needed where the head has some. head_key: the head's
    public key (z85). Several endpoints, and as many keys, are separated by commas: the head may be at any.
    Nothing is sent before the first question. Raises BadKeys.
    """
    own = NodeKeys.load(keys) if isinstance(keys, Path | str) else keys
    incarnations = Incarnations(wall_ms)
    endpoints, head_keys = endpoint.split(","), head_key.split(",") if head_key else []
    heads = [Peer(*one) for one in zip(endpoints, head_keys or [""] * len(endpoints), strict=True)]
    node = f"rlctl-{os.urandom(8).hex()}"  # ranks of a trainer begin in the same millisecond
    system = ActorSystem(
        node=node,
        process="client",
        wire=ZmqWire(node, incarnations.mint(), LOOPBACK, own),
        journals=_NoJournal(),
        network=Network("127.0.0.1", own),
        incarnations=incarnations,
        registry=heads,
    )
    system.start()
    try:
        yield Cluster(system, heads)
    finally:
        await system.close()


@asynccontextmanager
async def connect_to_run(run: RunDir) -> AsyncIterator[Cluster]:
    """Join the cluster of a run of this machine. Raises CannotRun where its head does not run."""
    agent = find_agent(run.head)
    async with connect(
        agent.endpoint, Path(agent.keys) if agent.keys else None, head_key=agent.public_key
    ) as it:
        yield it


class _NoJournal:
    """A `JournalStore` for a process that has no actors."""

    def open(self, stream: str, incarnation: int) -> Awaitable[None]:
        self._refuse(stream)

    def append(
        self, stream: str, incarnation: int, events: Sequence[Message], *, flush: bool = False
    ) -> Awaitable[int]:
        self._refuse(stream)

    def read(self, stream: str) -> Awaitable[Replayed]:
        self._refuse(stream)

    def snapshot(self, stream: str, incarnation: int, state: Message) -> Awaitable[int]:
        self._refuse(stream)

    def probe(self) -> Awaitable[None]:
        self._refuse("a probe")

    def refuses(self) -> str:
        return ""

    async def close(self) -> None:
        return None

    @staticmethod
    def _refuse(stream: str) -> Never:
        raise JournalError(f"{stream}: a client of a cluster keeps no journal")
