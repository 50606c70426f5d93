"""GatewayHttp: HTTP server of a gateway, made of settings, keys and the tokenizer.

Owns the sources of keys and the rule where a gateway may listen without any. Reads the file of keys and the
environment once, when the door is made.
"""

import errno
import ipaddress
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gleaner.actors.gateway.access import Access
from gleaner.actors.gateway.ask import Requests, Vocabulary
from gleaner.actors.gateway.calls import HandlerContext, ServedModel
from gleaner.actors.gateway.fleet import Fleet
from gleaner.actors.gateway.gateway import HttpEntry, MakeHttpEntry
from gleaner.actors.gateway.routes import ROUTES
from gleaner.actors.gateway.server import HttpServer, WebServer
from gleaner.actors.reward.prompts import BadTokenizer, Prompts
from gleaner.configs.load import ConfigError
from gleaner.configs.schema import Config
from gleaner.configs.schema import Gateway as Settings
from gleaner.transport.keys import RefusedToListen
from gleaner.transport.sockets import CannotListen

KEYS_VARIABLE = "GLEANER_API_KEYS"
CONTROL_KEYS_VARIABLE = "GLEANER_CONTROL_KEYS"

log = logging.getLogger("rollout/gateway")


def door_of(
    config: Config, model: str, tokenizer: Path | None, run: str = "", room: tuple[int, int] = (0, 0)
) -> MakeHttpEntry:
    """Makes the door in front of requests and a fleet, at `gateway.listen`.

    model: its name for clients, unless `gateway.model_name` is set. tokenizer: a checkpoint directory; None,
    or one without a tokenizer: clients send and read tokens. run: the run that the versions belong to. room:
    `ServedModel.context_tokens` and `room_tokens`; (0, 0): a longest prompt and a longest response fit
    together. The door, when it is made, raises ConfigError for an invalid address or file of keys, and
    RefusedToListen.
    """

    def make(requests: Requests, fleet: Fleet) -> HttpEntry:
        settings = config.gateway
        served = served_model(config, model, experts_shape(tokenizer), run, room)
        host, port = address_of(settings.listen)
        access = access_of(settings, os.environ)
        require_keys(settings, access, "use the engines")
        desk = HandlerContext(requests, fleet, settings, served, _vocabulary(tokenizer))
        return GatewayHttp(HttpServer(desk, ROUTES, access), host, port)

    return make


def require_keys(settings: Settings, access: Access, what: str) -> None:
    """Raises RefusedToListen beyond loopback without keys. what: a stranger could do there."""
    host, _ = address_of(settings.listen)
    if not access.keys and not settings.open and not _loopback(host):
        raise RefusedToListen(
            f"gateway.listen {settings.listen}: each host that reaches it could {what}; give "
            f"keys (gateway.api_keys or {KEYS_VARIABLE}), or set gateway.open"
        )


def served_model(
    config: Config, model: str, experts: tuple[int, int], run: str, room: tuple[int, int] = (0, 0)
) -> ServedModel:
    """What is served, by the settings. experts: see `ServedModel.experts_shape`; the others as in
    `door_of`."""
    settings = config.gateway
    return ServedModel(
        model=settings.model_name or model,
        max_prompt_tokens=config.engine.max_prompt_tokens,
        max_new_tokens=config.rollout.max_new_tokens,
        run=run,
        info=settings.server_info,
        routed_experts=settings.routed_experts,
        experts_shape=experts,
        context_tokens=room[0],
        room_tokens=room[1],
    )


class GatewayHttp:
    """See `gateway.Door`."""

    def __init__(self, server: WebServer, host: str, port: int) -> None:
        self._server, self._host, self._port = server, host, port

    async def start(self) -> str:
        """See `HttpEntry`. Raises CannotListen."""
        try:
            return await self._server.start(self._host, self._port)
        except OSError as problem:
            text = f"gateway.listen {self._host}:{self._port}: {problem.strerror or problem}"
            raise CannotListen(problem.errno or errno.EADDRNOTAVAIL, text) from problem

    async def close(self) -> None:
        """See `HttpEntry`."""
        await self._server.close()


def address_of(listen: str) -> tuple[str, int]:
    """Host and port. Raises ConfigError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError([f"gateway.listen {listen!r}: expected HOST:PORT such as 127.0.0.1:8000"])
    return host.strip("[]"), int(port)


def access_of(settings: Settings, environment: Mapping[str, str]) -> Access:
    """Which keys may call. Raises ConfigError for a file without any key."""
    host, _ = address_of(settings.listen)
    return Access(
        keys=_keys("gateway.api_keys", settings.api_keys, environment.get(KEYS_VARIABLE, "")),
        control_keys=_keys(
            "gateway.control_keys", settings.control_keys, environment.get(CONTROL_KEYS_VARIABLE, "")
        ),
        hosts=[host, *settings.hosts],
    )


def _keys(setting: str, file: str, variable: str) -> list[str]:
    """Lines of the file, and comma-separated keys of the variable."""
    keys = variable.split(",")
    if file:
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError([f"{setting} {file}: {problem}"]) from problem
        if not any(line.strip() for line in lines):
            raise ConfigError([f"{setting} {file}: no key is there, one a line"])
        keys += lines
    return list(dict.fromkeys(key.strip() for key in keys if key.strip()))


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Experts(msgspec.Struct):
    """Expert fields of a model's `config.json`."""

    num_hidden_layers: int = 0
    num_experts_per_tok: int = 0


def experts_shape(directory: Path | None) -> tuple[int, int]:
    """Layers, and experts of a token in each; (0, 0) if no `config.json` has them."""
    try:
        text = (directory / "config.json").read_bytes() if directory is not None else b"{}"
        found = msgspec.json.decode(text, type=_Experts)
    except (OSError, msgspec.DecodeError):
        return 0, 0
    return found.num_hidden_layers, found.num_experts_per_tok


def _vocabulary(directory: Path | None) -> Vocabulary | None:
    if directory is None:
        return None
    try:
        return Prompts(directory)
    except BadTokenizer as problem:
        log.warning("clients send and read tokens only: %s", problem)
        return None
