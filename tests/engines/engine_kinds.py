"""The kinds of servers that can run here, and how tests start one and attach to it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gleaner.actors.engine.servers.factory import (
    VLLM_PLUGIN,
    sglang_command,
    sglang_host,
    vllm_command,
    vllm_environment,
    vllm_host,
)
from gleaner.actors.engine.servers.host import RemoteHost
from gleaner.actors.engine.servers.port import ServerWire
from gleaner.actors.engine.servers.server_process import ServerProcess
from gleaner.actors.engine.servers.sglang import SglangWire, environment
from gleaner.actors.engine.servers.sglang_weights import PLUGIN
from gleaner.actors.engine.servers.vllm import VllmWire
from gleaner.configs.load import from_tree, load
from gleaner.configs.schema import Config

ROOT = Path(__file__).parents[2]
NEW_TOKENS = 100
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
VLLM_ARGS = ["--enforce-eager", "--kv-cache-memory-bytes", str(1 << 28)]

Start = Callable[[Config, str, Path, Path], ServerProcess]
"""Starts a server: (settings, URL, model folder, log file)."""


@dataclass(frozen=True)
class Kind:
    """A kind of server. `args`: its options on a CPU."""

    name: str
    args: list[str]
    start: Start
    host: Callable[[Config], RemoteHost]
    wire: Callable[[str], ServerWire]

    @property
    def environment(self) -> Path:
        return ROOT / ".engines" / self.name

    def why_not(self) -> str:
        """The reason why no server can run here, or ""."""
        if not (self.environment / ".ready").exists():
            return f"there is no {self.name} in {self.environment}: make engines"
        return ""

    def settings(self, url: str = "", stall_s: float = 30.0, *, kept: bool = False) -> Config:
        engine = {"kind": self.name, "url": url, "stall_s": stall_s, "slots": 16, "args": self.args}
        engine |= {"environment": str(self.environment), "max_prompt_tokens": NEW_TOKENS + 4}
        engine |= {"in_flight": "kept"} if kept else {}
        rollout = {"max_new_tokens": NEW_TOKENS, "staleness": int(kept)}
        return from_tree({"engine": engine, "rollout": rollout}, "test")


def _start_sglang(config: Config, url: str, folder: Path, log: Path) -> ServerProcess:
    command = sglang_command(config, url, folder, "v1-none")
    command.remove("--skip-tokenizer-init")  # as users run their own
    return ServerProcess(command, environment() | ONE_THREAD, log, PLUGIN)


def _start_vllm(config: Config, url: str, folder: Path, log: Path) -> ServerProcess:
    command = vllm_command(config, url, folder, "float32")
    return ServerProcess(command, vllm_environment(threads=1), log, VLLM_PLUGIN)


SGLANG = Kind(
    "sglang",
    load(str(ROOT / "configs" / "sglang.toml")).engine.args,
    _start_sglang,
    sglang_host,
    lambda url: SglangWire(url, None),
)
VLLM = Kind("vllm", VLLM_ARGS, _start_vllm, vllm_host, lambda url: VllmWire(url, None))
