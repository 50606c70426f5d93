"""Real servers on this CPU, and the rollout plane with instances that are attached to them."""

import asyncio
import http.client
import json
import os
import signal
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import torch
from engine_kinds import NEW_TOKENS, Kind

from gleaner.actors.engine.images.checkpoint_folder import ServedFolder
from gleaner.actors.engine.servers.server_process import ServerProcess, free_port
from gleaner.actors.engine.worker.settings import WorkerSettings
from gleaner.actors.engine.worker.worker import RolloutWorker
from gleaner.actors.model.flat_image import weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.model.tensor_spec import image_bytes
from gleaner.actors.protocol.instances import InstancesAre, ListInstances
from gleaner.actors.protocol.requests import Generate, Generated
from gleaner.actors.protocol.rollout import PublishVersion, RolloutFigures, RolloutStatus, Weights
from gleaner.actors.protocol.weights import Fetched, Publish, Published
from gleaner.actors.rollout.dispatch.load_balancer import LoadBalancer
from gleaner.actors.rollout.manager import RolloutManager
from gleaner.actors.rollout.settings import ManagerSettings
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer
from gleaner.actors.weights.agent import TransferAgent
from gleaner.actors.weights.image.store import ImageStore
from gleaner.actors.weights.settings import TransferSettings
from gleaner.supervisor import Done, Message
from gleaner.supervisor.testing import TestSystem

START_S = 400.0  # 15 to 30 s on two idle cores
MODEL = Qwen3Config(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,  # the least that vLLM has on a CPU
    eos_token_ids=(),  # every response reaches its limit
)


def model_of(version: int) -> Qwen3:
    """Weights so far apart that no rounding changes which token is the likeliest, and tokens vary."""
    torch.manual_seed(version)
    model = Qwen3(MODEL)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 2:
                weights.mul_(8)
    return model


@dataclass
class Server:
    """A running server, attached or not."""

    url: str
    process: ServerProcess

    def freeze(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.reap()

    def wait(self, until_s: float) -> None:
        """Until it is warm."""
        at = urlsplit(self.url)
        while time.monotonic() < until_s:
            self.process.require_alive()
            connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=30)
            try:
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                connection.close()
            time.sleep(0.3)
        raise AssertionError(f"no server after {START_S} s: {self.process.tail()}")


class Servers:
    """Two servers of a kind, started together."""

    def __init__(self, directory: Path, kind: Kind) -> None:
        self.kind = kind
        self._folder, self._logs = ServedFolder(), directory
        self._model = self._folder.write(publish_image(directory / "first", 1))
        write_tokenizer(self._model)
        self.both = [self._start(number) for number in (1, 2)]
        until_s = time.monotonic() + START_S
        try:
            for server in self.both:
                server.wait(until_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for server in self.both:
            server.kill()
        self._folder.remove()

    async def first_weights(self, directory: Path) -> None:
        """Make both servers serve their first weights; earlier tests may have left others."""
        first = publish_image(directory, 1)
        for server in self.both:
            wire = self.kind.wire(server.url)
            await wire.stage(first)
            await wire.commit()
            await wire.disconnect()

    def revive(self) -> None:
        """Replace the killed second server."""
        self.both[1] = self._start(2)
        self.both[1].wait(time.monotonic() + START_S)

    def _start(self, number: int) -> Server:
        url, log = f"http://127.0.0.1:{free_port()}", self._logs / f"server-{number}.log"
        return Server(url, self.kind.start(self.kind.settings(), url, self._model, log))


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer with one character for every token of the model."""
    new_tokenizer(["".join(chr(0x4E00 + number) for number in range(256))], []).save(
        str(directory / "tokenizer.json")
    )
    fields = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(fields))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def broken(version: int) -> Qwen3:
    """Weights as of a failed training step: they load, and their outputs are NaN."""
    model = model_of(version)
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(torch.nan)
    return model


def single_minded(version: int) -> Qwen3:
    """Weights under which every token is that of the version, for any prefix."""
    model = Qwen3(MODEL)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.fill_(1.0 if "norm" in name or name == EMBEDDING else 0.0)
        model.get_parameter(OUTPUT)[token_of(version)] = 1.0
    return model


EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def token_of(version: int) -> int:
    return 20 + version


def publish_image(directory: Path, version: int, make: Callable[[int], Qwen3] = model_of) -> Fetched:
    """An image of these weights, as an agent would hand it to a worker."""
    model, store = make(version), ImageStore(directory)
    specs = tuple(weight_layout(model))
    with store.create(version, image_bytes(specs), specs) as draft:
        write_weights(model, draft.view)
        draft.seal()
    settings_of = msgspec.json.encode(MODEL)
    place = str(store.path(version))
    return Fetched(
        version=version,
        root=bytes([version] * 16),
        path=place,
        tensors=specs,
        model_config=settings_of,
        pulled_bytes=0,
        seconds=0.0,
    )


@dataclass
class Plane:
    """A manager, the source of weights, and the instances that a test adds."""

    head: TestSystem
    source: TestSystem
    directory: Path
    kind: Kind
    hosts: list[TestSystem]
    workers: dict[str, RolloutWorker]
    make: Callable[[int], Qwen3] = model_of

    async def instance(self, name: str, url: str, stall_s: float = 30.0, *, kept: bool = False) -> TestSystem:
        """One more preemptible host, attached to the server at this URL; kept: its requests stay there."""
        config, store = self.kind.settings(url, stall_s, kept=kept), self.directory / f"{name}-store"
        system = TestSystem(self.directory, node=name, join=self.head)
        await system.__aenter__()
        self.hosts.append(system)
        system.spawn(
            f"{name}/transfer", lambda: TransferAgent(ImageStore(store), TransferSettings.of(config))
        )
        host = self.kind.host(config)
        self.workers[name] = worker = RolloutWorker(WorkerSettings.of(config), name, "preemptible", host)
        system.spawn(f"{name}/engine", lambda: worker)
        return system

    async def publish(self, version: int) -> None:
        fetched = publish_image(self.directory / "store", version, self.make)
        publish = Publish(version=version, tensors=fetched.tensors, model_config=fetched.model_config)
        published = await self.source.ask("r/transfer", publish, Published)
        weights = Weights(version=version, root=published.root, sources=("r/transfer",))
        await self.head.ask("rollout/manager", PublishVersion(weights=weights), Done)

    async def figures(self) -> RolloutFigures:
        return await self.head.ask("rollout/manager", RolloutStatus(), RolloutFigures)

    async def executing(self, name: str) -> int:
        """Requests that this instance decodes, by the manager's account; 0 for an instance that left."""
        known = await self.head.ask("rollout/manager", ListInstances(), InstancesAre)
        return sum(one.executing for one in known.instances if one.name == name)

    async def serving(self, instances: int) -> None:
        async with asyncio.timeout(60):
            while (await self.figures()).serving_preemptible < instances:
                await asyncio.sleep(0.05)

    async def serving_newest(self) -> None:
        """Until every instance serves what was published last."""
        async with asyncio.timeout(60):
            while True:
                known = await self.head.ask("rollout/manager", ListInstances(), InstancesAre)
                if all(one.version == known.published for one in known.instances):
                    return
                await asyncio.sleep(0.02)

    async def until_decoded(self, more: int, since: int | None = None) -> None:
        """Wait until so many more tokens were collected than `since`, or than now."""
        least = (since if since is not None else (await self.figures()).tokens_collected) + more
        async with asyncio.timeout(60):
            while (await self.figures()).tokens_collected < least:
                await asyncio.sleep(0.01)

    async def generate(self, request: Generate) -> Generated:
        answer = await self.head.ask("rollout/manager", request, Message, deadline_s=60.0)
        assert isinstance(answer, Generated), answer
        return answer


@asynccontextmanager
async def plane(
    directory: Path, kind: Kind, make: Callable[[int], Qwen3] = model_of, *, kept: bool = False
) -> AsyncIterator[Plane]:
    config = kind.settings(kept=kept)
    async with (
        TestSystem(directory, node="head") as head,
        TestSystem(directory, node="r", join=head) as source,
    ):
        source.spawn(
            "r/transfer", lambda: TransferAgent(ImageStore(directory / "store"), TransferSettings.of(config))
        )
        head.spawn("rollout/balancer", lambda: LoadBalancer(config.rollout.max_pending))
        head.spawn("rollout/manager", lambda: RolloutManager(ManagerSettings.of(config)))
        running = Plane(head, source, directory, kind, [], {}, make)
        try:
            yield running
        finally:
            for host in running.hosts:
                await host.system.close()


def request(name: str, place: int, **more: object) -> Generate:
    """A greedy request of the longest length; requests of one place differ only in their names."""
    prompt = array("I", [5, 9, 11 + place]).tobytes()
    fields = {"prompt": prompt, "max_new_tokens": NEW_TOKENS, "temperature": 0.0, "seed": place, **more}
    return Generate(id=f"{name}-{place}", **fields)  # type: ignore[arg-type]


def logprobs_of(version: int, prompt: bytes, tokens: bytes, temperature: float) -> torch.Tensor:
    """Of these tokens after this prompt, as training computes them, float32 [tokens]."""
    given, made = (torch.tensor(array("I", raw).tolist()) for raw in (prompt, tokens))
    with torch.inference_mode():
        logits = model_of(version)(torch.cat([given, made])[None])[0]
    scaled = torch.log_softmax(logits[len(given) - 1 : -1] / temperature, dim=-1)
    return scaled.gather(1, made[:, None])[:, 0]
