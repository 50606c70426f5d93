"""Our classes among verl's own, run by a Python environment that has verl.

It is not run by pytest. `python verl_classes.py URL` registers the classes, starts Ray, and lets verl's own
manager and client generate tokens through the gateway at URL. It aborts a request, lets a load balancer lose
a server and get it back, and updates weights. Its last line of output is the result as JSON.
"""

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["VERL_USE_EXTERNAL_MODULES"] = "gleaner.rlctl.integrations.verl"

import ray
import torch
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import RolloutConfig
from verl.workers.rollout.base import BaseRollout, get_rollout_class
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import RolloutReplica, TokenOutput, get_rollout_replica_class
from verl.workers.rollout.router import get_router_handle

from gleaner.rlctl.integrations.verl import GatewayBalancer, settings_of


class Model:
    """The part of verl's HFModelConfig that is read."""

    def __init__(self, local_path: str) -> None:
        self.local_path = local_path


def balancer() -> dict[str, object]:
    """A release from before a server left and returned does not count."""
    balancer = GatewayBalancer({"a": "handle"})
    early, _ = balancer.acquire_server("r1")
    balancer.remove_servers(["a"])
    balancer.add_servers({"a": "handle"})
    late, handle = balancer.acquire_server("r2")
    balancer.release_server(early)
    after_early = balancer.get_inflight_count("a")
    balancer.release_server(late)
    return {
        "names_differ": early != late,
        "handle": handle,
        "after_early": after_early,
        "after_late": balancer.get_inflight_count("a"),
    }


async def generate(config: object, url: str) -> dict[str, object]:
    """As verl's agent loops do: replica, balancer as a Ray actor, client."""
    replica_class = get_rollout_replica_class("gleaner")
    replica = replica_class(replica_rank=0, config=config.actor_rollout_ref.rollout, model_config=None)
    await replica.init_standalone()
    servers = {replica.server_address: replica.server_handle}
    router = get_router_handle(servers=servers, load_balancer_cls=GatewayBalancer)
    client = LLMServerClient(config, router)
    parameters = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "repetition_penalty": 1.0}
    output = await client.generate("turn", prompt_ids=[1, 2, 3], sampling_params=parameters)
    await replica.abort_all_requests(reject_request=True)
    rejected = await client.generate("turn", prompt_ids=[1], sampling_params=parameters)
    await replica.resume_generation()
    await replica.sleep()
    await replica.wake_up()
    await replica.clear_kv_cache()
    await replica.release_kv_cache()
    await replica.resume_kv_cache()
    again = await client.generate("turn", prompt_ids=[1, 2, 3, 4], sampling_params=parameters)
    return {
        "replica": issubclass(replica_class, RolloutReplica),
        "output": isinstance(output, TokenOutput),
        "token_ids": output.token_ids,
        "log_probs": output.log_probs,
        "stop_reason": output.stop_reason,
        "steps": [output.extra_fields[f"{name}global_steps"] for name in ("min_", "", "max_")],
        "rejected": rejected.stop_reason,
        "again": again.token_ids,
        "inflight": await router.get_total_inflight.remote(),
        "address": replica.server_address,
        "url": url,
    }


async def update(config: object, folder: Path) -> dict[str, object]:
    """As the workers of verl's trainer do, on one rank."""
    rollout_class = get_rollout_class("gleaner")
    like = folder / "like"
    like.mkdir()
    (like / "config.json").write_text("{}")
    rollout = rollout_class(config.actor_rollout_ref.rollout, Model(str(like)), device_mesh=None)
    await rollout.resume(tags=["weights"])
    weights = ((f"t{index}", torch.full((3,), float(index))) for index in range(2))
    await rollout.update_weights(weights, global_steps=5)
    await rollout.release()
    written = sorted(path.name for path in (folder / "weights" / "version-5").iterdir())
    return {"rollout": issubclass(rollout_class, BaseRollout), "written": written}


def main() -> None:
    """See the module."""
    url = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        ours = {"url": url, "weights_dir": f"{folder}/weights", "deadline_s": 60.0}
        rollout = {
            "_target_": "verl.workers.config.RolloutConfig",
            "name": "gleaner",
            "tensor_model_parallel_size": 1,
            "custom": {"gleaner": ours},
        }
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
        typed = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        found: dict[str, object] = {
            "config": isinstance(typed, RolloutConfig) and settings_of(typed).url == url,
            "balancer": balancer(),
            "update": None,
        }
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
        found["generate"] = asyncio.run(generate(config, url))
        # HFModelConfig loads a model's files; the rollout reads one path of it.
        import gleaner.rlctl.integrations.verl as ours_module

        ours_module.base.omega_conf_to_dataclass = lambda given: (
            given if isinstance(given, Model) else omega_conf_to_dataclass(given)
        )
        found["update"] = asyncio.run(update(config, Path(folder)))
        ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
