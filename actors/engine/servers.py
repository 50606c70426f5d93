"""The host of an engine that is a server, from the settings: its command line, its wire, its deadlines.

Owns what an instance gives a server that it starts. Adapter: makes what touches processes and sockets.
"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from actors.engine.remote import RemoteHost
from actors.engine.server_process import ServerProcess, free_port
from actors.engine.sglang import SglangWire, environment
from configs.schema import Config

CONTEXT_SLACK = 8  # tokens: servers count the one that they are about to make, and refuse what just fits


def sglang_host(config: Config) -> RemoteHost:
    """SGLang behind an instance: at `engine.url`, or started when the first weights come."""
    engine = config.engine
    if engine.url:
        wire = SglangWire(engine.url, None)
    else:
        url = f"http://127.0.0.1:{free_port()}"

        def start(folder: Path, name: str, log: Path) -> ServerProcess:
            return ServerProcess(sglang_command(config, url, folder, name), environment(), log)

        wire = SglangWire(url, start)
    return RemoteHost(wire, stall_s=engine.stall_s, serve_s=engine.start_s)


def sglang_command(config: Config, url: str, folder: Path, name: str) -> list[str]:
    """The command line of a server of this model folder, whose weights are called `name`."""
    engine, at = config.engine, urlsplit(url)
    given = {
        "--model-path": folder,
        "--weight-version": name,
        "--host": at.hostname,
        "--port": at.port,
        "--max-running-requests": engine.slots,
        "--context-length": engine.max_prompt_tokens + config.rollout.max_new_tokens + CONTEXT_SLACK,
        "--log-level": "warning",
    }
    told = [word for pair in given.items() for word in map(str, pair)]
    flags = ["--skip-tokenizer-init", "--incremental-streaming-output", "--sleep-on-idle"]
    python = f"{engine.environment}/bin/python" if engine.environment else sys.executable
    return [python, "-m", "sglang.launch_server", *told, *flags, *engine.args]
