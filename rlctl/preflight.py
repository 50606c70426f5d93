"""Preflight: trace, keys, engines, addresses, disk and shared memory before a run.

Owns the checks and their texts. Nothing is written. `gleaner.rlctl.models.check` checks in its own process
whether a model loads.
"""

import errno
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from gleaner.actors.cluster.job import SHARED_MEMORY
from gleaner.actors.cluster.provider import refuse_names
from gleaner.actors.engine.builtin.layer_budget import DoesNotFit, require_fit, sizes_of
from gleaner.actors.model.qwen3_config import BadCheckpoint, Qwen3Config
from gleaner.actors.reward import guarantees
from gleaner.actors.reward.sandbox.detection import NoSandbox
from gleaner.actors.reward.sandbox.program_pipes import SandboxFailed
from gleaner.actors.reward.verifiers.port import BadVerifier, VerifierSpec
from gleaner.actors.reward.verifiers.registry import CODE, JUDGE, PYTHON, SERVICES, is_compiled, make
from gleaner.configs import trace
from gleaner.configs.schema import Config
from gleaner.transport.keys import (
    BadKeys,
    NodeKeys,
    RefusedToListen,
    require_clear_beyond_loopback,
    require_keys_beyond_loopback,
)

BYTES_A_PARAMETER = 4
"""Bytes of a parameter: the trainer's are float32; images of weights are at most that."""
STATE_COPIES = 3
"""Weights and two moments of AdamW."""
IMAGES_A_HOST = 3
"""Images of weights on one host at once, at most: one served, one pulled, one about to be dropped."""
MEMORY_SPARE_BYTES = 16 << 20
FULL_BYTES = 1 << 20
"""Less than this counts as none: a journal grows by pages, a checkpoint by files."""
DISK_SPARE_BYTES = 128 << 20
"""Journals, logs and reports of a run of a few hundred steps."""


def problems(config: Config, runs_dir: Path, *, here: bool = True) -> list[str]:
    """One finished line for each problem that would stop the run. here: the hosts are processes of this
    machine; hosts of a cluster check their engines' needs themselves, when they get the job."""
    found = [*_settings(config), *_space(config, runs_dir)]
    if here:
        found += [*_ports(config), *_engines(config), *_rewards(config), *_judge(config)]
    return found


def _settings(config: Config) -> Iterator[str]:
    if config.fleet.trace:
        try:
            replayed = trace.read(config.fleet.trace)
            refuse_names(replayed)
            if config.fleet.await_instance and not trace.Availability(replayed).available_at(0.0):
                yield (
                    f"fleet.await_instance: {config.fleet.trace} has no instance at 0 s, and its clock "
                    "waits for the first one; add one at 0, or leave the setting out"
                )
        except trace.TraceError as problem:
            yield str(problem)
    try:
        keys = NodeKeys.load(config.network.keys) if config.network.keys else None
        require_keys_beyond_loopback(listen_address(config), keys)
        require_clear_beyond_loopback(listen_address(config), config.network.bulk)
    except (BadKeys, RefusedToListen) as problem:
        yield f"network: {problem}"
    wanted = {"tensorboard": config.loggers.tensorboard, "wandb": bool(config.loggers.wandb)}
    for package, on in wanted.items():
        if on and find_spec(package) is None:
            yield f"loggers.{package}: the package is not installed; pip install 'gleaner[loggers]'"
    from gleaner.actors.reward.stages import Pipelines  # plans, and so numpy

    if config.reward.share.with_:
        from gleaner.nodeagent.reward_discovery import NoService, require_tasks

        try:
            require_tasks(config)
        except NoService as problem:
            yield str(problem)
    if unstaffed := Pipelines(config.task, config.reward).problem():
        yield unstaffed
    elif lacking := guarantees.problem(Pipelines(config.task, config.reward), config.reward, None, 1):
        yield lacking
    if config.model.path:
        try:
            Qwen3Config.load(config.model.path)
        except BadCheckpoint as problem:
            yield f"model.path: {problem}"
            return
    yield from _widths(config)


def _widths(config: Config) -> Iterator[str]:
    """Widths that cut a head or the columns of the MLP: a server would end at its start, or with its first
    weights."""
    of = Qwen3Config.load(config.model.path) if config.model.path else None
    made = config.model
    heads = of.num_attention_heads if of is not None else made.heads
    kv_heads = of.num_key_value_heads if of is not None else made.kv_heads
    columns = of.intermediate_size if of is not None else made.intermediate_size
    for width in config.engine.widths:
        shared = kv_heads % width == 0 or width % kv_heads == 0  # SGLang copies heads that are too few
        if heads % width or columns % width or not shared:
            yield (
                f"engine.widths: {width} devices cannot share {heads} heads, {kv_heads} of keys and values, "
                f"and {columns} columns of the MLP: leave {width} out"
            )


def _judge(config: Config) -> Iterator[str]:
    """A judge of the job's own that cannot be served here."""
    if not config.serves_judge:
        return
    own = config.reward.judge.colocated
    try:
        sizes = sizes_of(Qwen3Config.load(own.model_path))
        require_fit(sizes, own.slots, own.context_tokens, own.reserve_mb << 20)
    except BadCheckpoint as problem:
        yield f"reward.judge.colocated.model_path: {problem}"
    except DoesNotFit as problem:
        needed_mb = -(-problem.needed_bytes // 2**20)
        yield f"reward.judge.colocated.reserve_mb: {problem}: it fits with {needed_mb}"
    if not (Path(own.model_path) / "tokenizer.json").is_file():
        yield f"reward.judge.colocated.model_path: {own.model_path}: no tokenizer.json is there"
    try:
        with socket.socket(socket.AF_INET6 if ":" in own.address[0] else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(own.address)
    except OSError as problem:
        yield f"reward.judge.colocated.listen {own.listen}: {problem.strerror}: choose another address"


def _rewards(config: Config) -> Iterator[str]:
    """User functions that cannot be imported, services without their key or rubric, compilers that are not
    here."""
    if config.reward.share.with_:  # they are the service's
        return
    for spec in _opened(config):
        try:
            verifier = make(spec)
            try:
                verifier.open()
            finally:
                verifier.close()
        except (BadVerifier, NoSandbox, SandboxFailed) as problem:
            yield f"task {spec.task}: {str(problem).removeprefix(f'task {spec.task}: ')}"


def _opened(config: Config) -> Iterator[VerifierSpec]:
    """The verifiers that are tried here. A trusted function is left to the workers, because only they trust
    it."""
    from gleaner.actors.reward.task import own_params, spec_of  # tokenizers and templates

    for task in config.task:
        spec = spec_of(task, config)
        trusted = spec.name == PYTHON and config.reward.function.trusted
        stages = config.reward.stages
        compiles_here = not stages.separate or stages.compile.workers > 0
        compiled = spec.name == CODE and is_compiled(task.params) and compiles_here
        if (spec.name in (PYTHON, *SERVICES) and not trusted) or compiled:
            yield replace(spec, judge=None)
        if spec.judge:
            yield VerifierSpec(name=JUDGE, task=task.name, params=own_params(JUDGE, config))


def _engines(config: Config) -> Iterator[str]:
    if config.engine.kind != "builtin" and config.fleet.n_prem_max:
        from gleaner.actors.engine.servers.requirements import (
            unmet,  # starts a process, or opens a connection
        )

        yield from unmet(config.engine)


def _ports(config: Config) -> Iterator[str]:
    """Addresses at which the head cannot listen."""
    places = {"network.bind": (config.network.bind, 0)}
    if config.gateway.listen:
        host, _, port = config.gateway.listen.rpartition(":")
        places["gateway.listen"] = (host.strip("[]"), int(port))
    for setting, place in places.items():
        if fault := _cannot_listen(*place):
            yield f"{setting}: {fault}"


def _cannot_listen(host: str, port: int) -> str:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError, UnicodeError) as problem:
        if isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE:
            return f"{host}:{port} is in use by another process; stop that one, or give another port"
        words = problem.strerror if isinstance(problem, OSError) else str(problem)
        return f"this machine cannot listen at {host}:{port}: {words}; give an address of its own"
    return ""


def listen_address(config: Config) -> str:
    """Listen address of the head: any port of the host's address."""
    host = config.network.bind
    return f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"


def _space(config: Config, runs_dir: Path) -> Iterator[str]:
    weights = weight_bytes(config)
    state = STATE_COPIES * weights
    on_disk = DISK_SPARE_BYTES + weights + (config.training.checkpoint_keep + 1) * state
    in_memory = MEMORY_SPARE_BYTES + IMAGES_A_HOST * weights * (1 + config.fleet.n_prem_max) + 2 * state
    folder = runs_dir.resolve()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield f"{folder}: cannot be written; give another folder with --runs-dir"
    free = shutil.disk_usage(folder).free
    if free < on_disk:
        yield f"{folder}: {size(free)} are free, a run needs {size(on_disk)}; free space or use --runs-dir"
    if not SHARED_MEMORY.is_dir():
        yield f"{SHARED_MEMORY} does not exist: hosts keep weights there; mount a tmpfs"
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < in_memory:
        left = sorted(SHARED_MEMORY.glob("gleaner-*"))
        hint = f"; {len(left)} folders of runs lie there (`rlctl weights clean`)" if left else ""
        yield (
            f"{SHARED_MEMORY}: {size(free)} are free, a run needs {size(in_memory)}{hint}; in a container, "
            "give it more with --shm-size"
        )


def full_disks(folder: Path) -> list[str]:
    """One finished line for each place of a run that has no space left; the failure itself may not mention
    it."""
    places = [place for place in (folder, SHARED_MEMORY) if place.is_dir()]
    return [
        f"{place}: no space is left there; free some, then resume the run"
        for place in places
        if shutil.disk_usage(place).free < FULL_BYTES
    ]


def weight_bytes(config: Config) -> int:
    """Size of the model's weights: from its files, or an estimate from the dimensions."""
    model = config.model
    if model.path:
        return sum(file.stat().st_size for file in Path(model.path).glob("*.safetensors"))
    attention = model.hidden_size * model.head_dim * 2 * (model.heads + model.kv_heads)
    layer = attention + 3 * model.hidden_size * model.intermediate_size
    return BYTES_A_PARAMETER * (model.layers * layer + 512 * model.hidden_size)


def size(count: int) -> str:
    """Bytes in readable form."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
