"""Engine hosts for SGLang and vLLM: command line, wire, deadlines from settings.

Owns the arguments of the servers that an instance starts. Adapter: makes objects that use processes and
sockets.
"""

import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gleaner.actors.engine.images.checkpoint_folder import WEIGHTS, version_name
from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.servers.server_process import ServerProcess, free_port
from gleaner.actors.engine.servers.sglang import SglangWire, environment
from gleaner.actors.engine.servers.sglang_weights import LOADER, PLUGIN
from gleaner.actors.engine.servers.vllm import VllmWire
from gleaner.actors.engine.servers.vllm_messages import BACKEND, MIDDLEWARE
from gleaner.actors.protocol.weights import Fetched
from gleaner.configs.schema import Config

VLLM_PLUGIN = Path(__file__).parent.with_name("vllm_plugin")
"""First on the path, before an installed copy, whose entry point vLLM needs: ours matches this program."""
NO_WEIGHTS = "none-yet"
"""The server's name for the meaningless weights that it was started with."""
CONTEXT_SLACK = 8  # tokens: servers count the next token too, and would refuse the exact length


class Spread(NamedTuple):
    """How a server spreads copies of the model over devices: `width` for each of `copies`."""

    width: int
    copies: int


def server_host(config: Config, api_key: str = "", spread: Spread | None = None) -> RemoteHost:
    """The server of an instance, of `engine.kind`. api_key: of one at `engine.url`, "" for none. spread: of
    an SGLang server that is started; None: as `engine.args` have it."""
    if config.engine.kind == "vllm":
        return vllm_host(config, api_key)
    return sglang_host(config, api_key, spread)


def sglang_host(config: Config, api_key: str = "", spread: Spread | None = None) -> RemoteHost:
    """SGLang behind an instance: at `engine.url`, or started when the first weights arrive."""
    engine = config.engine
    if engine.url:
        wire = SglangWire(engine.url, None, api_key)
    else:
        url = f"http://127.0.0.1:{free_port()}"

        def start(folder: Path, fetched: Fetched, log: Path) -> ServerProcess:
            if (folder / WEIGHTS).exists():
                command = sglang_command(config, url, folder, version_name(fetched), spread)
            else:
                command = [*sglang_command(config, url, folder, NO_WEIGHTS, spread), "--load-format", "dummy"]
            return ServerProcess(command, environment(), log, PLUGIN)

        own_format = any(word.startswith("--load-format") for word in engine.args)
        wire = SglangWire(url, start, early=not own_format)
    return RemoteHost(
        wire,
        stall_s=engine.stall_s,
        serve_s=engine.start_s,
        engines=1 if spread is None else spread.copies,
        capacity=wire.capacity,
    )


def vllm_host(config: Config, api_key: str = "") -> RemoteHost:
    """vLLM behind an instance: at `engine.url`, or started when the first weights arrive."""
    engine = config.engine
    if engine.url:
        wire = VllmWire(engine.url, None, api_key)
    else:
        url = f"http://127.0.0.1:{free_port()}"

        def start(folder: Path, fetched: Fetched, log: Path) -> ServerProcess:
            command = vllm_command(config, url, folder, fetched.tensors[0].dtype)
            return ServerProcess(command, vllm_environment(engine.threads), log, VLLM_PLUGIN)

        wire = VllmWire(url, start)
    return RemoteHost(wire, stall_s=engine.stall_s, serve_s=engine.start_s)


def sglang_command(
    config: Config, url: str, folder: Path, name: str, spread: Spread | None = None
) -> list[str]:
    """The command line of a server of this model folder; `name`: of its weights."""
    engine, at = config.engine, urlsplit(url)
    given = {
        "--model-path": folder,
        "--weight-version": name,
        "--host": at.hostname,
        "--port": at.port,
        "--max-running-requests": engine.slots,
        "--context-length": engine.max_prompt_tokens + config.rollout.max_new_tokens + CONTEXT_SLACK,
        "--custom-weight-loader": LOADER,
        "--log-level": "warning",
    }
    if spread is not None:
        given |= {"--tp-size": spread.width, "--dp-size": spread.copies}
    extra = [word for pair in given.items() for word in map(str, pair)]
    flags = ["--skip-tokenizer-init", "--incremental-streaming-output", "--sleep-on-idle"]
    return [_python(config), "-m", "sglang.launch_server", *extra, *flags, *engine.args]


def vllm_command(config: Config, url: str, folder: Path, dtype: str) -> list[str]:
    """The command line of a server of this model folder, without weights: they arrive over HTTP."""
    engine, at = config.engine, urlsplit(url)
    given = {
        "--model": folder,
        "--served-model-name": "policy",
        "--host": at.hostname,
        "--port": at.port,
        "--dtype": dtype,  # otherwise vLLM rounds float32 weights
        "--max-num-seqs": engine.slots,
        "--max-model-len": engine.max_prompt_tokens + config.rollout.max_new_tokens + CONTEXT_SLACK,
        "--load-format": "dummy",
        "--logprobs-mode": "processed_logprobs",
        "--weight-transfer-config": f'{{"backend": "{BACKEND}"}}',
        "--middleware": MIDDLEWARE,
        "--uvicorn-log-level": "warning",
    }
    flags = [word for pair in given.items() for word in map(str, pair)]
    module = "vllm.entrypoints.openai.api_server"
    return [_python(config), "-m", module, *flags, "--skip-tokenizer-init", *engine.args]


def vllm_environment(threads: int) -> dict[str, str]:
    """The environment of a vLLM server of ours: its routes for weights are open, and it uses no network."""
    return {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
    }


def _python(config: Config) -> str:
    environment = config.engine.environment
    return f"{environment}/bin/python" if environment else sys.executable
