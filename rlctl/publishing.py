"""Publishing weights from a trainer of one's own: into the shared memory of its host, and on from there.

Owns the way from tensors to a version that instances serve: the host's TransferAgent is found, an image is
written where it looks, and it is told. The copy is all that a trainer waits for; the agent hashes, serves and
announces, also when the trainer has ended meanwhile.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from actors.cluster.job import store_dir
from actors.cluster.messages import HostsUp, JobIs, JobSpec, JobStatus, WhoIsUp
from actors.rollout.instance_messages import InstancesAre, ListInstances
from actors.weights.image_store import Draft, ImageStore
from actors.weights.images import ImageStoreError, VersionConflict
from actors.weights.messages import FindStore, Publish, Published, StoreIs
from supervisor import Address, AskFailed, Message, Refused

if TYPE_CHECKING:
    from torch import Tensor

    from actors.engine.named_tensors import NamedTensors

R = TypeVar("R", bound=Message)

SCHEDULER = "cluster/scheduler"
MANAGER = "rollout/manager"
ASK_S = 5.0
WAIT_S = 60.0
"""For the host's agent: a job that was just started has none yet."""
LOOK_S = 0.2
DESCRIBE_S = 600.0
"""Until the agent has hashed and announced an image: 1 TB at 2 GB/s."""

State = Mapping[str, "Tensor"]
ModelConfig = bytes | str | Path | Mapping[str, object] | object | None
"""A checkpoint's config.json: its bytes, the file or its folder, a mapping, or what has `to_dict`."""


class CannotPublish(Exception):
    """Nothing was published, and instances serve what they served; the text says why and what to do."""


class Asks(Protocol):
    """A client of the cluster."""

    async def ask(
        self, to: Address | str, message: Message, *, expect: type[R], deadline_s: float = 5.0, key: str = ""
    ) -> R: ...


@dataclass(frozen=True, slots=True)
class Home:
    """The agent of this host, where its images are, and the config of the model that it has."""

    node: str
    agent: str
    store: Path
    model_config: bytes


@dataclass(frozen=True, slots=True)
class Publication:
    """A version that was handed over. `host`: its agent's. `copy_s`: what the trainer waited for the copy."""

    version: int
    host: str
    tensors: int
    nbytes: int
    copy_s: float
    announced: "asyncio.Task[Published]"

    async def known(self) -> Published:
        """Wait until the manager knows of it, so that instances pull it from here on. Raises CannotPublish,
        or what an ask raises."""
        try:
            return await asyncio.shield(self.announced)
        except Refused as refusal:
            raise CannotPublish(str(refusal)) from refusal


class Publishing:
    """See the module. One for each client; versions are published one after the other."""

    def __init__(self, cluster: Asks) -> None:
        self._cluster = cluster
        self._one = asyncio.Lock()
        self._home: Home | None = None
        self._before: Publication | None = None
        self._config = b""

    async def publish(
        self,
        weights: State | Path | str,
        version: int,
        *,
        config: ModelConfig = None,
        host: str = "",
        wait_s: float = WAIT_S,
        progress: Callable[[int, int], None] | None = None,
    ) -> Publication:
        """See `Cluster.publish`."""
        async with self._one:
            if self._before is not None:  # one image is hashed at a time: two more may lie in the store
                await self._before.known()
                self._before = None
            home = await self._at_home(host, wait_s)
            await self._require_new(version)
            try:
                source, found = await asyncio.to_thread(
                    _source, weights, config, self._config or home.model_config
                )
                began_s = time.monotonic()
                await asyncio.to_thread(_write, home.store, version, source, progress)
            except (ImageStoreError, ValueError, OSError) as problem:
                raise CannotPublish(str(problem)) from problem
            self._config = found
            message = Publish(version=version, tensors=source.specs, model_config=found, announce=True)
            told = self._cluster.ask(home.agent, message, expect=Published, deadline_s=DESCRIBE_S)
            self._before = Publication(
                version=version,
                host=home.node,
                tensors=len(source.specs),
                nbytes=source.nbytes,
                copy_s=time.monotonic() - began_s,
                announced=_heard(told),
            )
            return self._before

    async def _at_home(self, host: str, wait_s: float) -> Home:
        if self._home is None or (host and self._home.node != host) or not self._home.store.is_dir():
            self._home = await find_home(self._cluster, host, wait_s)
        return self._home

    async def _require_new(self, version: int) -> None:
        """Raises CannotPublish where a higher version is there; before anything is copied."""
        seen = await self._cluster.ask(MANAGER, ListInstances(), expect=InstancesAre, deadline_s=ASK_S)
        if version < 0 or (seen.published is not None and version < seen.published):
            raise CannotPublish(
                f"version {version} cannot be published, version {seen.published} is the newest: versions go "
                f"up, go on with {(seen.published or 0) + 1}"
                if version >= 0
                else f"version {version}: versions are numbers from 0 up"
            )


async def find_home(cluster: Asks, host: str = "", wait_s: float = WAIT_S) -> Home:
    """The agent of this host: the named one's, a reserved one before others. Raises CannotPublish where there
    is none after `wait_s`."""
    until_s = time.monotonic() + wait_s
    while True:
        try:
            return await _find_home(cluster, host)
        except (CannotPublish, AskFailed) as problem:
            if isinstance(problem, Refused):
                raise CannotPublish(str(problem)) from problem
            if time.monotonic() >= until_s:
                raise (
                    problem if isinstance(problem, CannotPublish) else CannotPublish(str(problem))
                ) from problem
        await asyncio.sleep(LOOK_S)


async def _find_home(cluster: Asks, host: str) -> Home:
    job = await cluster.ask(SCHEDULER, JobStatus(), expect=JobIs, deadline_s=ASK_S)
    if job.state != "running":
        raise CannotPublish('no job runs there: start one whose settings say training.backend = "own"')
    up = await cluster.ask(SCHEDULER, WhoIsUp(), expect=HostsUp, deadline_s=ASK_S)
    spec = JobSpec(run_id=job.run_id, run_dir="", model_dir="", config="")
    known = sorted(up.roles, key=lambda node: (up.roles[node] != "reserved", node))
    here = [node for node in known if host in ("", node) and store_dir(spec, node).is_dir()]
    if not here:
        raise CannotPublish(
            f"no node agent of job {job.run_id} keeps weights on this host{f' as {host}' if host else ''} "
            f"(its hosts: {', '.join(known) or 'none yet'}): start one here, `nodeagent start --role "
            "reserved`; a trainer in a container needs the host's /dev/shm"
        )
    agent = f"{here[0]}/transfer"
    found = await cluster.ask(agent, FindStore(), expect=StoreIs, deadline_s=ASK_S)
    store = Path(found.place).parent
    if not os.access(store, os.R_OK | os.W_OK | os.X_OK):
        raise CannotPublish(f"{store} is another user's: run the trainer as the user of its node agent")
    return Home(here[0], agent, store, found.model_config)


def _heard(told: Awaitable[Published]) -> "asyncio.Task[Published]":
    async def answer() -> Published:
        return await told

    task = asyncio.create_task(answer())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waits hears of it
    return task


def _source(weights: State | Path | str, config: ModelConfig, known: bytes) -> "tuple[NamedTensors, bytes]":
    """Tensors and config.json. Raises ValueError, OSError."""
    from actors.engine.named_tensors import config_of_folder, of_folder, of_state

    if isinstance(weights, Path | str):
        folder = Path(weights)
        found = config_of_folder(folder) if config is None else encoded_config(config)
        return of_folder(folder), found
    found = known if config is None else encoded_config(config)
    if not found:
        raise CannotPublish(
            "the first version needs config=, the model's config.json: engines must know the model"
        )
    tied = json.loads(found).get("tie_word_embeddings", True)
    return of_state(weights, tied=bool(tied)), found


def encoded_config(config: ModelConfig) -> bytes:
    """config.json of a model. Raises ValueError, OSError."""
    from actors.engine.named_tensors import config_of_folder

    if isinstance(config, bytes):
        return config
    if isinstance(config, str | Path):
        path = Path(config)
        return config_of_folder(path if path.is_dir() else path.parent)
    if not isinstance(config, Mapping):
        as_dict = getattr(config, "to_dict", None)
        if as_dict is None:
            raise CannotPublish(
                f"config is {type(config).__name__}: give a folder, a mapping or a model's config"
            )
        config = as_dict()
    return json.dumps(config, default=str, sort_keys=True).encode()


def _write(
    directory: Path, version: int, source: "NamedTensors", progress: Callable[[int, int], None] | None
) -> None:
    """The sealed image. Raises ImageStoreError, ValueError, OSError."""
    copied = 0

    def more(nbytes: int) -> None:
        nonlocal copied
        copied += nbytes
        if progress is not None:
            progress(copied, source.nbytes)

    store = ImageStore(directory)
    with store.create(version, source.nbytes) as draft:
        source.write(draft.view, more)
        _seal(store, draft)


def _seal(store: ImageStore, draft: Draft) -> None:
    """What a trainer wrote under this number and never published makes way."""
    try:
        draft.seal()
    except VersionConflict:
        if store.noted(draft.version) is not None:
            raise VersionConflict(
                f"version {draft.version} was published before with other bytes: give these a higher number"
            ) from None
        store.discard(draft.version)
        draft.seal()
