"""A job's settings and the places of its files on a host.

Owns the paths of a job on each host. Pure: opens none of the files.
"""

import tomllib
from functools import lru_cache
from pathlib import Path

import msgspec

from gleaner.actors.protocol.cluster import JobSpec
from gleaner.configs import load
from gleaner.configs.load import ConfigError
from gleaner.configs.schema import Config
from gleaner.supervisor import Health

SHARED_MEMORY = Path("/dev/shm")  # Linux: files that live in memory, readable by all processes of the host


def config_of(job: JobSpec) -> Config:
    """The resolved settings of a job. Raises ConfigError."""
    return _resolved(job.config, f"job {job.run_id}")


def with_gateway(job: JobSpec, listen: str) -> JobSpec:
    """The same job with its gateway at this address. Raises ConfigError."""
    config = config_of(job)
    gateway = msgspec.structs.replace(config.gateway, listen=listen)
    return msgspec.structs.replace(job, config=load.dump(msgspec.structs.replace(config, gateway=gateway)))


def health_of(config: Config, patience: float = 1.0) -> Health | None:
    """Health limits that the processes of a job apply to their children; `patience`: times the usual
    silence.
    """
    live, silent_s = config.liveness, config.liveness.hung_s * patience
    return Health(silent_s, max(live.start_s, silent_s)) if silent_s else None


@lru_cache(maxsize=4)  # most actors of a host ask, and the answer is frozen
def _resolved(settings: str, name: str) -> Config:
    try:
        tree = tomllib.loads(settings)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise ConfigError([f"{name}: its settings are not valid TOML: {problem}"]) from problem
    return load.from_tree(tree, name)


def memory_dir(job: JobSpec, node: str) -> Path:
    """Shared memory of this job on this host."""
    return SHARED_MEMORY / f"gleaner-{job.run_id}-{node}"


def blob_dir(job: JobSpec, node: str) -> Path:
    """Where a host's reward workers leave what the next stage needs. It outlives these processes."""
    return memory_dir(job, node) / "blobs"


def store_dir(job: JobSpec, node: str) -> Path:
    """Images of weights: written by the trainer or pulled, read by the engine."""
    return memory_dir(job, node) / "weights"


def state_copy_dir(job: JobSpec, node: str) -> Path:
    """Host copies of the trainer's state."""
    return memory_dir(job, node) / "state"


def gang_dir(job: JobSpec, node: str) -> Path:
    """The meeting folder of the processes of a trainer that has several."""
    return memory_dir(job, node) / "gang"


def checkpoint_dir(job: JobSpec) -> Path:
    """Durable checkpoints."""
    return Path(job.run_dir) / "checkpoints"


def host_dir(job: JobSpec, node: str) -> Path:
    """State directory of a host that the head starts itself."""
    return Path(job.run_dir) / "nodes" / node
