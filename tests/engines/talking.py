"""Two real servers of a chat model behind a gateway that reaches them through small segments of TCP.

The model has random weights, a tokenizer, a chat template and a context for long prompts."""

import contextlib
import json
import sys
import time
from pathlib import Path

import msgspec
from engine_kinds import SGLANG
from engines_world import START_S, Server

from gleaner.actors.engine.servers.server_process import free_port
from gleaner.actors.reward.problems import Problems
from gleaner.actors.training.new_model import new_model
from gleaner.configs.load import from_tree, load
from gleaner.configs.schema import Config

sys.path.insert(0, str(Path(__file__).parent.parent / "gateway"))

from gateway_runs import Processes, get, healthy, loads

from tests.segmenting_proxy import SegmentingProxy

MOST_PROMPT, MOST_NEW = 1536, 512
SEED = 3
SMALL = ("hidden_size=64", "layers=2", "warm_start.steps=1")
"""Nearly every token is as likely as any other: a response ends after about a hundred tokens, a number after
about ten."""


class Talking:
    """The servers, the proxies before them, and the gateway before those, at `url`."""

    def __init__(self, directory: Path) -> None:
        self.model_dir = directory / "model"
        config = load("quickstart", [f"model.{one}" for one in SMALL])
        new_model(
            self.model_dir, config.model, Problems(config.task[0].name, config.task[0].params, SEED), SEED
        )
        self._lengthen()
        self.servers = [self._start(directory, number) for number in (1, 2)]
        self.processes = Processes(directory)
        self._proxies = contextlib.ExitStack()
        try:
            for server in self.servers:
                server.wait(time.monotonic() + START_S)
            self.url = self._gateway()
        except BaseException:
            self.close()
            raise
        self.model = get(f"{self.url}/v1/models")["data"][0]["id"]

    def close(self) -> None:
        self.processes.close()
        self._proxies.close()
        for server in self.servers:
            server.kill()

    def _gateway(self) -> str:
        self.proxies = [self._proxies.enter_context(SegmentingProxy(server.url)) for server in self.servers]
        behind = [word for proxy in self.proxies for word in ("--engine-url", proxy.url)]
        self.processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", *behind)
        url = self.processes.url("gateway")
        self.processes.wait(lambda: len(healthy(url)) == len(self.servers), "both servers to be in use")
        return url

    def _lengthen(self) -> None:
        """Raise the context limit in the file; RoPE itself has none."""
        path = self.model_dir / "config.json"
        entries = json.loads(path.read_text())
        path.write_text(json.dumps(entries | {"max_position_embeddings": MOST_PROMPT + MOST_NEW + 64}))

    def _start(self, directory: Path, number: int) -> Server:
        url, log = f"http://127.0.0.1:{free_port()}", directory / f"server-{number}.log"
        return Server(url, SGLANG.start(_settings(), url, self.model_dir, log))


def _settings() -> Config:
    base = SGLANG.settings()
    return from_tree(
        {
            "engine": {
                **msgspec.to_builtins(base.engine),
                "max_prompt_tokens": MOST_PROMPT,
                "args": [*base.engine.args, "--constrained-json-disable-any-whitespace"],
            },
            "rollout": {"max_new_tokens": MOST_NEW},
        },
        "test",
    )


__all__ = ["Talking", "loads"]
