"""Client library: access to the actors of a cluster from outside.

    async with connect("tcp://10.0.0.1:7700", keys="keys/laptop", head_key=KEY) as cluster:
        job = await cluster.ask("cluster/scheduler", JobStatus(), expect=JobIs, deadline_s=2.0)

Owns an actor system without actors: names resolve through the head's registry, asks are re-sent under one key
until their deadline. The message type of an answer must be imported before the answer is read.
"""

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Never, TypeVar

from gleaner.actors.names import MANAGER
from gleaner.nodeagent.cluster_view import ClusterView, no_head
from gleaner.nodeagent.defaults import DEADLINE_S
from gleaner.nodeagent.files import find_agent
from gleaner.nodeagent.wall_clock import wall_ms
from gleaner.rlctl.client_waits import WAIT_S
from gleaner.rlctl.errors import nothing
from gleaner.rlctl.runs import RunDir
from gleaner.supervisor import (
    ActorSystem,
    Address,
    AskFailed,
    Health,
    Incarnations,
    JournalError,
    Message,
    ProcessIdentity,
    Refused,
    SystemPorts,
)
from gleaner.supervisor.journal.port import Replayed
from gleaner.supervisor.network import Network
from gleaner.supervisor.watch.health import ChildHealth
from gleaner.transport.keys import NodeKeys
from gleaner.transport.mesh import ZmqWire
from gleaner.transport.wire import Peer

if TYPE_CHECKING:  # most commands only look: the modules that generate and publish are imported on use
    from gleaner.actors.protocol.requests import Generate, Generated, VersionNotReady
    from gleaner.rlctl.sharded_publisher import OwnParts, Ranks
    from gleaner.rlctl.weight_publisher import ModelConfig, Publication, State, WeightPublisher

R = TypeVar("R", bound=Message)

LOOPBACK = "tcp://127.0.0.1:0"


class Cluster(ClusterView):
    """Operations of a client. Asks raise `AskTimeout`, `Unreachable`, `Overloaded` or `Refused`."""

    def __init__(self, system: ActorSystem, heads: Sequence[Peer]) -> None:
        super().__init__(system, heads)
        self._publishing: WeightPublisher | None = None

    async def find(self, name: str, deadline_s: float = DEADLINE_S) -> Address:
        """The address that holds `name`, with its incarnation. Raises AskTimeout where no actor holds it."""
        return await self._system.resolve(name, deadline_s)

    async def generate(self, request: "Generate") -> "Generated | VersionNotReady":
        """Have the instances of the job continue a prompt; see docs/versions.md. A repeated ask with the same
        id and contents is the same request, also after the manager dies. Raises Refused where the id was
        already used with different contents, or the prompt is too long."""
        from gleaner.actors.protocol.requests import Generated, VersionNotReady

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
        trainer". It returns when the weights are copied into the shared memory of this host; the host's agent
        does the rest, and the tensors may change again. The call waits for the previous version first.

        Args:
            weights: a state dict (dense tensors of any dtype, on any device, contiguous or not), or the
                folder of a checkpoint (safetensors, one file or many with their index).
            version: higher than earlier ones; repeating the same bytes under the same number is allowed.
            config: the model's config.json; needed once for state dicts, a folder has its own.
            host: host whose agent serves it, where this machine has several; "" for a reserved one.
            wait_s: longest wait for that agent, when the job has just begun.
            progress: called with bytes copied and total bytes, from another thread.
            ranks: rank of this process in a sharded trainer; default: from torch.distributed or torchrun.
                Every rank publishes its part of each version; the version is complete when all have.
            parts: the rank's parts of the image's tensors; needed where they are not DTensors.
            model_changed: tensor names, shapes or dtypes may differ from those of the previous version.

        Raises: CannotPublish, also where instances could not load an earlier version of this client's;
            AskTimeout, Unreachable or Overloaded where the cluster does not answer.
        """
        from gleaner.rlctl.weight_publisher import WeightPublisher

        if self._publishing is None:
            self._publishing = WeightPublisher(self)
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
        """Send a message to an actor: at most once, without a reply."""
        await self._system.tell(to, message)

    async def probe(self, deadline_s: float = DEADLINE_S) -> None:
        """Check that the head is alive. Raises CommandError (exit code 3) where it does not answer."""
        try:
            await self.names(deadline_s=deadline_s)
        except AskFailed as problem:
            raise nothing(no_head(self.head.endpoint, problem)) from problem

    async def head_hung(self, health: Health, cpu_s: Callable[[], float]) -> str:
        """Check the health of the head's process as long as it is healthy; return the failure. `cpu_s`:
        processor seconds that the process has used."""
        links, clock = self._system.links, self._system.turn_clock
        pulse, heard_s = ChildHealth(health, clock.now()), -math.inf
        while True:
            await asyncio.sleep(health.beat_s)
            if heard_s == -math.inf:  # an ask makes the link, and a run may have asked nothing yet
                with contextlib.suppress(AskFailed):
                    await self.names(deadline_s=health.silent_s)
            newest_s = links.heard_s(self.head)
            if newest_s > heard_s:
                heard_s = newest_s
                pulse.beat(clock.now())
            if cause := pulse.look(clock.now(), cpu_s):
                return cause
            links.ask_life(self.head)  # without a link there is no peer to ask: the next ask dials


@asynccontextmanager
async def connect(
    endpoint: str, keys: NodeKeys | Path | str | None = None, *, head_key: str = ""
) -> AsyncIterator[Cluster]:
    """Join the cluster of the head at `endpoint` ("tcp://host:port") as a client.

    keys: this client's own, or the directory of them; needed where the head has some. head_key: the head's
    public key (z85). Several endpoints, and as many keys, are separated by commas; the head may be at any of
    them. Nothing is sent before the first ask. Raises BadKeys.
    """
    own = NodeKeys.load(keys) if isinstance(keys, Path | str) else keys
    incarnations = Incarnations(wall_ms)
    endpoints, head_keys = endpoint.split(","), head_key.split(",") if head_key else []
    heads = [Peer(*one) for one in zip(endpoints, head_keys or [""] * len(endpoints), strict=True)]
    node = f"rlctl-{os.urandom(8).hex()}"  # ranks of a trainer start in the same millisecond
    system = ActorSystem(
        ProcessIdentity(node, "client", incarnations),
        SystemPorts(
            wire=ZmqWire(node, incarnations.mint(), LOOPBACK, own),
            journals=_NoJournal(),
            network=Network("127.0.0.1", own),
        ),
        registry=heads,
    )
    system.start()
    try:
        yield Cluster(system, heads)
    finally:
        await system.close()


@asynccontextmanager
async def connect_to_run(run: RunDir) -> AsyncIterator[Cluster]:
    """Join the cluster of a run on this machine. Raises CannotRun where its head does not run."""
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

    def snapshot(
        self, stream: str, incarnation: int, state: Message, *, flush: bool = False
    ) -> Awaitable[int]:
        self._refuse(stream)

    def force_out(self) -> Awaitable[None]:
        self._refuse("a commit")

    def probe(self) -> Awaitable[None]:
        self._refuse("a probe")

    def refuses(self) -> str:
        return ""

    async def close(self) -> None:
        return None

    @staticmethod
    def _refuse(stream: str) -> Never:
        raise JournalError(f"{stream}: a client of a cluster keeps no journal")
