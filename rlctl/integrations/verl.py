"""verl's rollout through the gateway: classes for verl's registries.

Enabled by `VERL_USE_EXTERNAL_MODULES=gleaner.rlctl.integrations.verl` and `rollout.name=gleaner`. Owns the
classes that verl's registries take: the replica, the load balancer, and the rollout that a trainer's worker
updates.
Adapter: it is imported in verl's own environment and nowhere else. Settings, under
`actor_rollout_ref.rollout.custom.gleaner`: `url`; `weights_dir`, a folder that trainer and engines share;
`api_key` ("") and `deadline_s` (3600), of one request.
"""

import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Protocol

import msgspec
import ray
import torch
from omegaconf import OmegaConf
from verl.workers.rollout import base
from verl.workers.rollout.replica import (
    CONTROL_METHOD_CONCURRENCY,
    RolloutMode,
    RolloutReplica,
    RolloutReplicaRegistry,
    TokenOutput,
)
from verl.workers.rollout.router import GlobalRequestLoadBalancer
from verl.workers.rollout.utils import ensure_async_iterator

from gleaner.rlctl.integrations.verl_server import Gateway, GatewayServer
from gleaner.rlctl.integrations.verl_translation import Tokens
from gleaner.rlctl.integrations.verl_weights import Folders

NAME = "gleaner"
MAX_CONCURRENCY = 4096
"""Concurrent requests through one replica's actor; verl's agent loops stay far below it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module."""

    url: str
    weights_dir: str = ""
    api_key: str = ""
    deadline_s: float = 3600.0


class RolloutSettings(Protocol):
    """The fields that are read of verl's RolloutConfig."""

    custom: object
    response_length: int


def settings_of(config: RolloutSettings) -> Settings:
    """Raises ValueError, which names the place of our settings in verl's."""
    custom = OmegaConf.to_container(OmegaConf.create(config.custom or {}), resolve=True)
    try:
        return msgspec.convert(custom[NAME], Settings)
    except (KeyError, msgspec.ValidationError) as problem:
        raise ValueError(
            f"actor_rollout_ref.rollout.custom.{NAME}: {problem}; expected url=http://host:port and, "
            "to update weights, weights_dir=FOLDER"
        ) from problem


class VerlServer(GatewayServer):
    """A gateway's server that answers in verl's struct; Ray makes an actor of it."""

    async def generate(self, *args: object, **named: object) -> TokenOutput:
        """As `GatewayServer.generate`."""
        return _output(await super().generate(*args, **named))  # type: ignore[arg-type]


def _output(tokens: Tokens) -> TokenOutput:
    return TokenOutput(
        token_ids=tokens.token_ids,
        log_probs=tokens.log_probs,
        stop_reason=tokens.stop_reason,
        extra_fields={
            "global_steps": tokens.global_steps,
            "min_global_steps": tokens.min_global_steps,
            "max_global_steps": tokens.max_global_steps,
            "num_cached_tokens": tokens.num_cached_tokens,
        },
    )


class GatewayReplica(RolloutReplica):  # type: ignore[misc]
    """A replica that is the gateway: it starts no engine and takes no GPU, whatever mode verl requests."""

    async def init_standalone(self) -> None:
        """As verl's, without a pool of GPUs and workers of its own."""
        self.rollout_mode = RolloutMode.STANDALONE
        await self.launch_servers()

    async def init_colocated(self, resource_pool: object) -> None:
        """As verl's, without workers of its own."""
        self.rollout_mode = RolloutMode.COLOCATED
        await self.launch_servers()

    async def launch_servers(self) -> None:
        """An actor that sends requests to the gateway."""
        settings = settings_of(self.config)
        server = ray.remote(num_cpus=0)(VerlServer)
        self._server_handle = server.options(
            name=server_name(self.replica_rank, self.name_suffix),
            max_concurrency=MAX_CONCURRENCY + CONTROL_METHOD_CONCURRENCY,
        ).remote(settings.url, settings.api_key, self.config.response_length, settings.deadline_s)
        self.servers = [self._server_handle]
        self._server_address = settings.url.rstrip("/").partition("://")[2] or settings.url


def server_name(replica_rank: int, suffix: str = "") -> str:
    """The name of a replica's actor, in verl's style."""
    return f"{NAME}_server_{replica_rank}_0{suffix}"


class GatewayBalancer(GlobalRequestLoadBalancer):  # type: ignore[misc]
    """verl's balancer, with an incarnation for each server: a request that began before a server left and
    came back does not lower the count of the present incarnation.

    For `LLMServerManager(load_balancer_cls=...)`. `acquire_server` returns `<server>#<incarnation>`.
    """

    def __init__(self, servers: dict[str, object], **settings: object) -> None:
        super().__init__(servers, **settings)
        self._incarnations = dict.fromkeys(servers, 1)

    def acquire_server(self, request_id: str) -> tuple[str, object]:
        """As verl's."""
        server_id, handle = super().acquire_server(request_id)
        return f"{server_id}#{self._incarnations[server_id]}", handle

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """As verl's; a release of an earlier incarnation changes nothing."""
        server, _, incarnation = server_id.rpartition("#")
        if incarnation == str(self._incarnations.get(server)):
            super().release_server(server, request_id)

    def add_servers(self, servers: dict[str, object]) -> None:
        """As verl's; a server that is already registered keeps its count."""
        new = {server: handle for server, handle in servers.items() if server not in self._inflight_requests}
        for server in new:
            self._incarnations[server] = self._incarnations.get(server, 0) + 1
        super().add_servers(new)


class GatewayRollout(base.BaseRollout):  # type: ignore[misc]
    """The rollout that a worker of verl's trainer holds: it writes the weights where the engines can read
    them and has the gateway serve them. All ranks read the weights (a collective), rank 0 writes."""

    def __init__(
        self, config: object, model_config: object, device_mesh: object, replica_rank: int = -1
    ) -> None:
        super().__init__(config, model_config, device_mesh)
        settings = settings_of(self.config)
        self._writes = int(os.environ.get("RANK", "0")) == 0
        self._gateway = Gateway(settings.url, settings.api_key, deadline_s=settings.deadline_s)
        self._weights_dir = settings.weights_dir

    async def resume(self, tags: list[str]) -> None:
        """Does nothing: the engines' memory is not the trainer's."""

    async def release(self) -> None:
        """Does nothing, as above."""

    async def update_weights(
        self,
        weights: Iterable[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        peft_config: object = None,
        base_sync_done: bool = True,
        **kwargs: object,
    ) -> None:
        """Take full tensors under their Hugging Face names. Raises NotImplementedError for deltas and
        adapters, and the gateway's refusals."""
        if wire_format != "named_tensors":
            raise NotImplementedError(f"{NAME}: wire_format {wire_format!r}; it takes named_tensors")
        if peft_config is not None and base_sync_done:
            raise NotImplementedError(f"{NAME}: adapters alone; set actor_rollout_ref.model.lora.merge=True")
        stream: AsyncIterator[tuple[str, torch.Tensor]] = ensure_async_iterator(weights)
        if not self._writes:
            async for _ in stream:
                continue
            return
        if not self._weights_dir:
            raise ValueError(f"actor_rollout_ref.rollout.custom.{NAME}.weights_dir: expected a shared folder")
        folders = Folders(Path(self._weights_dir), like=Path(self.model_config.local_path))
        folder = await folders.write(stream, global_steps)
        await self._gateway.update_weights(str(folder), global_steps)
        await self._gateway.close()  # the next update may run on another loop


def register() -> None:
    """Register `rollout.name=gleaner` with verl in this process; a repeated call changes nothing."""
    RolloutReplicaRegistry.register(NAME, lambda: GatewayReplica)
    base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.GatewayRollout"


register()
