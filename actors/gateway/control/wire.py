"""Control structs of SGLang, its router, vLLM, and the trainers behind them.

Owns the structs. Pure. Keys that only tune an engine are accepted and change nothing, so unknown ones are
ignored here; each route refuses what it cannot do.
"""

import re

import msgspec

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.gateway.fleet import PauseMode, Worker

_VERSION = re.compile(r"[^0-9]*([0-9]{1,18})")
"""The last part of a path, which ends with the only number in it."""


class Nothing(msgspec.Struct):
    """A body or an answer without content."""


class WorkerIs(msgspec.Struct, kw_only=True):
    """A worker as sgl-model-gateway lists it. incarnation: together with the url it is the worker's identity.
    weight_version: null before it has any. refused: why it is not used, null for one that may be."""

    id: str
    url: str
    incarnation: int
    worker_type: str = "regular"
    model_id: str = ""
    priority: int = 50
    cost: float = 1.0
    is_healthy: bool
    load: int
    connection_mode: str = "http"
    runtime_type: str = ""
    weight_version: str | None = None
    job_status: None = None
    refused: str | None = None

    @classmethod
    def of(cls, worker: Worker, model: str) -> "WorkerIs":
        """An engine of the fleet."""
        return cls(
            id=worker.id,
            url=worker.url,
            incarnation=worker.incarnation,
            model_id=model,
            is_healthy=worker.healthy,
            load=worker.running + worker.waiting,
            runtime_type=worker.kind,
            weight_version=None if worker.version is None else str(worker.version),
            refused=worker.refused or None,
        )


class WorkerStats(msgspec.Struct, kw_only=True):
    """Sums over the listed workers."""

    total_workers: int
    healthy_workers: int
    total_models: int
    total_load: int
    by_type: dict[str, int]


class WorkersAre(msgspec.Struct, kw_only=True):
    """The list of workers."""

    workers: list[WorkerIs]
    total: int
    stats: WorkerStats

    @classmethod
    def of(cls, workers: list[WorkerIs]) -> "WorkersAre":
        """These workers, with their sums."""
        stats = WorkerStats(
            total_workers=len(workers),
            healthy_workers=sum(worker.is_healthy for worker in workers),
            total_models=len({worker.model_id for worker in workers}),
            total_load=sum(worker.load for worker in workers),
            by_type={"regular": len(workers), "prefill": 0, "decode": 0},
        )
        return cls(workers=workers, total=len(workers), stats=stats)


class WorkersQuery(msgspec.Struct):
    """engines: list the engines behind the gateway, instead of the gateway as the one worker."""

    engines: bool = False


class AddWorker(msgspec.Struct):
    """url, or worker_url as in miles."""

    url: str = ""
    worker_url: str = ""
    api_key: str | None = None
    worker_type: str = "regular"


class WorkerTaken(msgspec.Struct, kw_only=True):
    """status: "added", "known", "removed" or "absent"."""

    status: str
    worker_id: str
    url: str


class Urls(msgspec.Struct):
    """Urls of workers."""

    urls: list[str]


class AbortBody(msgspec.Struct):
    """rid: of one request, or of a batch; abort_all: abort every request of this gateway."""

    rid: str = ""
    abort_all: bool = False
    abort_message: str | None = None


class LoadIs(msgspec.Struct, kw_only=True):
    """Requests of this gateway: in all, decoded, and waiting."""

    dp_rank: int = 0
    num_reqs: int
    num_running_reqs: int
    num_waiting_reqs: int


class LoadsAre(msgspec.Struct, kw_only=True):
    """`/v1/loads`."""

    timestamp: float
    version: str = "gleaner"
    loads: list[LoadIs]


class VllmConfig(msgspec.Struct, kw_only=True, frozen=True):
    """TRL checks this before it forms a group of processes: there is no such engine here."""

    weight_transfer_config: None = None


class ServerInfo(msgspec.Struct, kw_only=True):
    """`/server_info`: arguments of a server of one engine, as slime compares them, Stitch's state of the
    weights, and vllm_config, where vLLM's server has its settings. A prompt is shorter than
    max_req_input_len, as with SGLang. More keys are added from `gateway.server_info`."""

    model_path: str
    served_model_name: str
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    ep_size: int = 1
    moe_dp_size: int = 1
    num_gpus: int = 1
    disaggregation_mode: str = "null"
    encoder_only: bool = False
    enable_memory_saver: bool = False
    enable_return_routed_experts: bool = False
    weight_version: str
    context_length: int
    max_req_input_len: int
    ready: bool
    applied: str | None
    sync_state: str = "IDLE"
    reason: str | None = None
    vllm_config: VllmConfig = VllmConfig()


class ModelInfo(msgspec.Struct, kw_only=True):
    """`/model_info`."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True
    has_image_understanding: bool = False
    has_audio_understanding: bool = False
    weight_version: str
    max_model_len: int


class WeightVersionIs(msgspec.Struct):
    """The newest version that an engine serves; "" before the first."""

    weight_version: str


class Ready(msgspec.Struct, omit_defaults=True):
    """`/health`: whether an engine serves; if not, why."""

    ready: bool
    reason: str | None = None


class Life(msgspec.Struct):
    """`/liveness`."""

    status: str = "ok"


class PauseBody(msgspec.Struct):
    """mode: SGLang's abort, retract or in_place; vLLM's abort, wait or keep."""

    mode: str | None = None


class PauseQuery(msgspec.Struct):
    """The same as a query; clear_cache changes nothing, since caches belong to versions."""

    mode: str | None = None
    clear_cache: bool | None = None


class Paused(msgspec.Struct, kw_only=True):
    """The result of a control call."""

    status: str = "ok"
    message: str = ""
    num_paused_requests: int = 0


class FromDisk(msgspec.Struct):
    """`/update_weights_from_disk`. model_path: a checkpoint directory."""

    model_path: str
    weight_version: str | int | None = None
    abort_all_requests: bool = False


class Pull(msgspec.Struct):
    """`/pull_weights` of slime's builds."""

    target_version: str | int | None = None
    source_dir: str = ""
    local_checkpoint_dir: str = ""


class WeightDir(msgspec.Struct):
    """`/update_weights` of prime-rl."""

    weight_dir: str | None = None


class FetchWeights(msgspec.Struct):
    """`/fetch_weights` of SkyRL."""

    target_version: str | int | None = None
    sync_dir: str | None = None
    uri: str | None = None


class Updated(msgspec.Struct, kw_only=True):
    """success: an engine serves the version."""

    success: bool
    message: str
    num_paused_requests: int = 0
    weight_version: str | None = None


def version_of(value: str | int | None, name: str) -> int | None:
    """The number in a version as trainers write it: 7, "7", "run/weight_v000007", ".../step_7". A version
    that could be read as another number, such as "v1.2.10", is refused. Raises BadAsk."""
    if value is None or value == "":
        return None
    last = str(value).rstrip("/").rpartition("/")[2]
    found = _VERSION.fullmatch(last)
    if found is None or last.startswith("-"):
        raise BadAsk(
            f"expected a version that is one number of at most 18 digits, or ends with the only number in it "
            f'(7, "step_7", "run/weight_v000007"), got {value!r}',
            name,
        )
    return int(found[1])


def mode_of(value: str | None) -> PauseMode:
    """The `PauseMode` for a mode of SGLang or vLLM. Raises BadAsk."""
    modes: dict[str | None, PauseMode] = {
        None: "abort",
        "abort": "abort",
        "wait": "wait",
        "keep": "keep",
        "retract": "keep",
        "in_place": "keep",
    }
    if value not in modes:
        raise BadAsk(f"expected one of abort, wait, keep, retract, in_place, got {value!r}", "mode")
    return modes[value]
