"""Seconds from a verified image in shared memory to a real SGLang that serves it.

Usage: `python -m bench.weights.engine_load [--json FILE]`. Measures each way that SGLang has on one host
without a GPU. *Stage* is the work while the server serves on, *commit* the work while it is paused. The ways,
one after the other in each round, on one server: our loader, which maps the image; a folder in shared memory,
which SGLang reads as a checkpoint; the tensors in the body of `/update_weights_from_tensor`. Beside them one
copy of the image's bytes in this process, the limit. Each way proves that it loaded: the server names the
version. Medians of `ROUNDS`; needs `.engines/sglang` (make engines).
"""

import asyncio
import base64
import pickle
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch

from bench.table import Row, run
from gleaner.actors.engine.servers.factory import sglang_command
from gleaner.actors.engine.servers.http import HttpWire
from gleaner.actors.engine.servers.server_process import ServerProcess, free_port
from gleaner.actors.engine.servers.sglang import environment
from gleaner.actors.engine.servers.sglang_messages import EmptyBody, ModelInfo, Pause, ServerInfo, Updated
from gleaner.actors.engine.servers.sglang_weights import PLUGIN, SglangWeights
from gleaner.actors.engine.servers.supervised_server import SupervisedServer
from gleaner.actors.model.flat_image import image_bytes, weight_layout, write_weights
from gleaner.actors.model.qwen3 import Qwen3
from gleaner.actors.model.qwen3_config import Qwen3Config
from gleaner.actors.protocol.weights import Fetched
from gleaner.actors.weights.image.store import ImageStore
from gleaner.configs.load import load

ROUNDS = 5
START_S = 600.0
LOAD_S = 600.0
MODEL = Qwen3Config(
    vocab_size=32_000,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=64,
    tie_word_embeddings=True,
    eos_token_ids=(),
)
ABOUT = "Seconds from an image in shared memory to an SGLang server that serves it"


LOADER, FOLDER, TENSORS = "our loader", "a folder", "tensors in JSON"
Stage = Callable[[Fetched], Awaitable[None]]
Load = Callable[[Fetched, str], Awaitable[None]]


@dataclass(frozen=True)
class FlipTimes:
    """Times of one flip."""

    stage_s: float
    commit_s: float


class WithTensors(msgspec.Struct):
    """`/update_weights_from_tensor` as SGLang's documentation uses it."""

    serialized_named_tensors: list[str]
    weight_version: str


async def with_tensors(http: HttpWire, fetched: Fetched, name: str) -> None:
    """The tensors themselves, pickled, in base64, in JSON."""
    image = np.memmap(fetched.path, np.uint8, "r")
    pairs = []
    for spec in fetched.tensors:
        flat = torch.from_numpy(np.array(image[spec.offset : spec.offset + spec.nbytes]))
        pairs.append((spec.name, flat.view(getattr(torch, spec.dtype)).view(spec.shape)))
    body = WithTensors([base64.b64encode(pickle.dumps(pairs)).decode()], name)
    await http.tell("/begin_weight_update", EmptyBody(), LOAD_S)
    reply = await http.post("/update_weights_from_tensor", body, Updated, LOAD_S)
    await http.tell("/end_weight_update", EmptyBody(), LOAD_S)
    if not reply.success:
        raise RuntimeError(f"the server did not take the tensors: {reply.message}")


async def seconds_of(http: HttpWire, stage: Stage, load: Load, fetched: Fetched, name: str) -> FlipTimes:
    """Raises RuntimeError where the server does not serve the version afterwards."""
    began_s = time.perf_counter()
    await stage(fetched)
    staged_s = time.perf_counter()
    await http.tell("/pause_generation", Pause(mode="retract"), LOAD_S)
    await load(fetched, name)
    await http.tell("/continue_generation", EmptyBody(), LOAD_S)
    done_s = time.perf_counter()
    serves = (await http.get("/model_info", ModelInfo)).weight_version
    if serves != name:
        raise RuntimeError(f"the server serves {serves}, not {name}")
    return FlipTimes(staged_s - began_s, done_s - staged_s)


async def nothing(fetched: Fetched) -> None:
    """There is nothing to stage."""


def publish(store: ImageStore) -> Fetched:
    """A random model as an image in shared memory, as an agent passes it to a worker."""
    torch.manual_seed(1)
    model = Qwen3(MODEL)
    specs = tuple(weight_layout(model))
    with store.create(1, image_bytes(specs), specs) as draft:
        write_weights(model, draft.view)
        draft.seal()
    config = msgspec.json.encode(MODEL)
    return Fetched(1, bytes(16), str(store.path(1)), specs, config, 0, 0.0)


def copy_s(fetched: Fetched) -> float:
    """One copy of the image's bytes."""
    image = np.memmap(fetched.path, np.uint8, "r")
    into = np.zeros(len(image), np.uint8)
    began_s = time.perf_counter()
    into[:] = image
    done_s: float = time.perf_counter()
    return done_s - began_s


async def measured(fetched: Fetched) -> list[Row]:
    """Rows: each way against the folder."""
    config = load("configs/sglang.toml")
    url = f"http://127.0.0.1:{free_port()}"
    http = HttpWire(url)

    def start(folder: Path, first: Fetched, log: Path) -> ServerProcess:
        return ServerProcess(sglang_command(config, url, folder, "first"), environment(), log, PLUGIN)

    server = SupervisedServer(http, start, health_s=30.0)
    try:
        async with asyncio.timeout(START_S):
            await server.begin(fetched, weights=True)
        server.folder.forget(fetched)
        mapped, copied = SglangWeights(http, server.folder), SglangWeights(http, server.folder)
        mapped.look(await http.get("/server_info", ServerInfo))
        found: dict[str, list[FlipTimes]] = {way: [] for way in (LOADER, FOLDER, TENSORS)}
        for number in range(ROUNDS):
            found[LOADER].append(
                await seconds_of(http, mapped.stage, mapped.load, fetched, f"mapped-{number}")
            )
            found[FOLDER].append(
                await seconds_of(http, copied.stage, copied.load, fetched, f"copied-{number}")
            )
            tensors = partial(with_tensors, http)
            found[TENSORS].append(await seconds_of(http, nothing, tensors, fetched, f"sent-{number}"))
    finally:
        await server.disconnect()
    return rows(found, statistics.median(copy_s(fetched) for _ in range(ROUNDS)))


def rows(found: dict[str, list[FlipTimes]], limit_s: float) -> list[Row]:
    """Each way against the folder, and its pause against one copy."""

    def median(way: str, what: str) -> float:
        seconds: list[float] = [getattr(one, what) for one in found[way]]
        return statistics.median(seconds)

    table = []
    for way in found:
        for what, words in (("stage_s", "stage"), ("commit_s", "commit")):
            table.append(Row(f"{words}, {way}", "s", median(way, what), FOLDER, median(FOLDER, what)))
        table.append(Row(f"commit, {way}", "s", median(way, "commit_s"), "one copy", limit_s))
    return table


def measure() -> Sequence[Row]:
    """A folder in shared memory, which is freed at the end."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gleaner-bench-") as directory:
        fetched = publish(ImageStore(directory))
        return asyncio.run(measured(fetched))


if __name__ == "__main__":
    run("weights.engine_load", ABOUT, measure)
