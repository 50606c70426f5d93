"""Purity of simulated code: no clock, randomness, file or thread but those it is given.

The check reads the source, so it catches a module before a seed does.
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from gleaner.rlctl import vocabulary

ROOT = Path(__file__).parents[2]

ADAPTERS = {
    "actors/cluster/checkpoint_store.py": "checkpoints in files",
    "actors/cluster/sealed_folder.py": "writes whole folders or none",
    "actors/engine/builtin/row_blocks.py": "decodes on threads of its own",
    "actors/engine/builtin/layer_stream.py": "copies layers on a thread, or on a stream of the GPU",
    "actors/model/checkpoint.py": "reads model files",
    "actors/model/checkpoint_files.py": "looks at model files",
    "actors/engine/builtin/host.py": "the processors of this computer",
    "actors/model/named_tensors.py": "reads model files",
    "actors/engine/servers/supervised_server.py": "a server of ours",
    "actors/engine/servers/host.py": "the clock of the machine that a server is on",
    "actors/engine/images/checkpoint_folder.py": "folders in shared memory",
    "actors/engine/servers/server_facts.py": "asks a server, reads a model's folder",
    "actors/engine/servers/server_launcher.py": "becomes another program",
    "actors/engine/servers/requirements.py": "starts an interpreter, asks a server",
    "actors/engine/servers/server_process.py": "starts a server",
    "actors/engine/servers/sglang.py": "a server of SGLang",
    "actors/engine/sglang_plugin/gleaner_sglang.py": "runs inside of SGLang, not here",
    "actors/engine/servers/sglang_weights.py": "files that a server reads",
    "actors/engine/servers/vllm_folders.py": "a server of vLLM",
    "actors/engine/vllm_plugin/gleaner_vllm/image_transfer.py": "runs inside of vLLM, not here",
    "rlctl/integrations/verl.py": "runs inside of verl, not here",
    "rlctl/integrations/verl_weights.py": "runs inside of verl, not here",
    "actors/model/qwen3_config.py": "reads a model's config file",
    "actors/engine/builtin_server/batch_loop.py": "turns an engine on a thread",
    "actors/engine/builtin_server/entry.py": "a socket of a server",
    "actors/engine/builtin_server/chat_routes.py": "answers over HTTP, tells the time",
    "actors/engine/builtin_server/control_routes.py": "answers over HTTP, reads model files",
    "actors/engine/builtin_server/generate_routes.py": "answers over HTTP",
    "actors/engine/builtin_server/process.py": "sockets of a server, the clock, a model's files",
    "actors/engine/builtin_server/status_routes.py": "answers over HTTP, tells the time",
    "actors/reward/blobs.py": "files of programs on this host",
    "actors/reward/sandbox/gpus.py": "looks for the GPUs of this host",
    "actors/reward/prompts.py": "reads the files of a tokenizer",
    "actors/reward/sandbox/confinement.py": "runs inside a sandbox, not here",
    "actors/reward/sandbox/descendants.py": "runs inside a sandbox, not here",
    "actors/reward/sandbox/detection.py": "tries which sandbox works on this machine",
    "actors/reward/sandbox/folders.py": "folders of sandboxes",
    "actors/reward/sandbox/host_end.py": "starts a sandbox",
    "actors/reward/sandbox/landlock.py": "runs inside a sandbox, not here",
    "actors/reward/sandbox/namespaces.py": "runs inside a sandbox, not here",
    "actors/reward/sandbox/program.py": "runs inside a sandbox, not here",
    "actors/reward/sandbox/program_pipes.py": "pipes of a program in a sandbox",
    "actors/reward/sandbox/shells.py": "starts a sandbox",
    "actors/reward/sandbox/syscalls.py": "runs inside a sandbox, not here",
    "actors/reward/sandbox/wire.py": "the socket of a sandbox",
    "actors/reward/sandbox/zygote.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/function_calls.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/function_sources.py": "looks for the files of a user's module",
    "actors/reward/verifiers/own_function.py": "imports and calls a user's function",
    "actors/reward/verifiers/functions.py": "has programs score within a time on the clock",
    "actors/reward/verifiers/trusted_functions.py": "calls a user's function within a time on the clock",
    "actors/reward/verifiers/http_calls.py": "calls a service",
    "actors/reward/verifiers/judge/verifier.py": "reads a rubric, bounds a judge's time on the clock",
    "actors/reward/verifiers/math_comparison.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/sandboxed.py": "has programs score within a time on the clock",
    "actors/reward/verifiers/program_runs.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/plain_runs.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/command_runs.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/stdin_runs.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/compilers.py": "looks for compilers on this machine",
    "actors/reward/verifiers/reasoning.py": "runs inside a sandbox, not here",
    "actors/reward/tables.py": "reads a file of problems",
    "actors/reward/verifiers/unit_runs.py": "runs inside a sandbox, not here",
    "actors/reward/verifiers/watched_child.py": "runs inside a sandbox, not here",
    "actors/reward/worker.py": "the main of a scorer's process",
    "actors/reward/worker_process.py": "starts a scorer's process and talks to it",
    "actors/gateway/calls.py": "HTTP calls of clients, which get ids and the date",
    "actors/gateway/call_texts.py": "encodes long texts on a thread",
    "actors/training/fsdp2_compute.py": "torch's distributed training",
    "actors/training/fsdp2_files.py": "the files that the ranks of a gang fill together",
    "actors/training/fsdp2_rank.py": "what a rank's process does, order by order",
    "actors/training/fsdp2_shard.py": "a rank's part of a model on torch and files",
    "actors/training/gang.py": "sockets between the ranks of a gang",
    "actors/training/history.py": "the history file of a run",
    "actors/training/new_model.py": "makes model files; a command, no actor",
    "actors/training/row_files.py": "files that several processes write",
    "actors/training/trainer_files.py": "a trainer on torch and files",
    "actors/weights/control/file.py": "a page in shared memory, read by other processes",
    "actors/weights/delta/threads.py": "threads for encoding and applying deltas",
    "actors/weights/disk/reader.py": "versions on a shared file system",
    "actors/weights/disk/writer.py": "versions on a shared file system",
    "actors/weights/image/draft.py": "a version that is being written, in shared memory",
    "actors/weights/image/store.py": "images of weights in shared memory",
    "actors/weights/image/reader_locks.py": "files of images that somebody reads",
    "configs/load.py": "reads settings files",
    "configs/trace.py": "reads traces of availability",
    "nodeagent/judge_server.py": "a key in the environment",
    "nodeagent/model_discovery.py": "files of this host, a variable",
    "nodeagent/reward_discovery.py": "a file of this host, a variable, a service over HTTP",
    "nodeagent/__main__.py": "the command of a node agent",
    "nodeagent/client.py": "asks a node agent of this machine",
    "nodeagent/commands.py": "the command of a node agent",
    "nodeagent/control_socket.py": "a socket for commands on its host",
    "nodeagent/files.py": "the state directory of a node",
    "nodeagent/state_lock.py": "the lock of a state directory",
    "nodeagent/gateway_http.py": "API keys, in a file and the environment",
    "nodeagent/reward_http.py": "API keys, in a file and the environment; ids and the date",
    "nodeagent/gateway_model.py": "the model that a gateway of its own has seen, in its state directory",
    "nodeagent/head_lease.py": "who may be head, in a database",
    "nodeagent/host.py": "what a process needs of its real host",
    "nodeagent/job_memory.py": "folders in shared memory, and who has files of them open",
    "nodeagent/inventory.py": "what this machine has",
    "nodeagent/job_file.py": "the job of a process, in a file",
    "nodeagent/metrics_server.py": "answers over HTTP, in a thread",
    "nodeagent/notices/metadata.py": "asks a metadata service over HTTP",
    "nodeagent/process.py": "the main of a process",
    "nodeagent/numeric_threads.py": "the environment of numerical libraries",
    "nodeagent/shutdown.py": "signals of this process",
    "nodeagent/service_manager.py": "the service manager that started a process",
    "nodeagent/host_services.py": "what a node does to its machine; the simulator has another",
    "nodeagent/wall_clock.py": "the clock of the machine",
    "nodeagent/traces.py": "sends spans from a thread",
    "sim/cluster.py": "measures how long a run takes, for who waits for it",
    "sim/commands.py": "the words for an error number",
    "sim/models/hardware.py": "reads the table of hardware that lies beside it",
    "sim/power_loss.py": "has SQLite write a file, of which pages are lost",
    "sim/models/shapes.py": "reads the table of models that lies beside it",
    "supervisor/journal/group_commit.py": "the thread of a journal",
    "supervisor/journal/file.py": "reads journals of others",
    "supervisor/fork_server/client.py": "starts a fork server",
    "supervisor/fork_server/server.py": "forks processes",
    "supervisor/machine.py": "the machine that this process runs on",
    "supervisor/parent.py": "asks the kernel to end a process with its parent",
    "supervisor/process.py": "child processes",
    "supervisor/journal/sqlite.py": "journals in files",
    "supervisor/journal/sqlite_layout.py": "the tables of a journal's file",
    "supervisor/standalone.py": "the edge of a process without a node agent",
    "transport/bulk_news.py": "threads of bulk transfer",
    "transport/bulk_socket.py": "sockets of bulk transfer",
    "transport/gate.py": "the socket that asks who may connect",
    "transport/key_follower.py": "follows a key directory",
    "transport/keys.py": "key files",
    "transport/listener_probe.py": "dials a port to see who listens",
    "transport/mesh.py": "control links on ZeroMQ",
    "transport/trusted.py": "the folder of trusted keys",
    "transport/zap.py": "keys at ZeroMQ's door",
    "transport/zmq_carrier.py": "data sockets on ZeroMQ and TCP",
}
"""Modules at the boundary to something real, and what that is.

The simulator replaces each of these modules, or never runs it.
"""

BANNED_MODULES = {
    "concurrent", "ctypes", "datetime", "fcntl", "mmap", "multiprocessing", "os", "psutil",
    "secrets", "select", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
BANNED_CALLS = {"open", "input", "hash", "breakpoint", "__import__", "exec", "eval"}
"""`hash`: for a str it differs from process to process. The last three hide their imports."""
NUMBERS = {"Signals"}
"""Allowed names of a banned module: names of numbers."""
BANNED_ATTRIBUTES = {
    "environ": "reads the environment",
    "import_module": "hides what it imports",
    "expanduser": "reads the environment",
    "touch": "touches files",
    "glob": "looks at files",
    "cwd": "looks at this process",
    "getenv": "reads the environment",
    "read_text": "opens a file",
    "read_bytes": "opens a file",
    "write_text": "opens a file",
    "write_bytes": "opens a file",
    "mkdir": "touches files",
    "rmdir": "touches files",
    "iterdir": "looks at files",
    "rglob": "looks at files",
    "is_file": "looks at files",
    "is_dir": "looks at files",
    "to_thread": "starts a thread",
    "run_in_executor": "starts a thread",
    "call_soon_threadsafe": "is called by threads",
    "create_subprocess_exec": "starts a process",
    "create_subprocess_shell": "starts a process",
    "open_connection": "opens a socket",
    "start_server": "opens a socket",
    "all_tasks": "has no order",
    "as_completed": "has no order",
    "TaskGroup": "cancels in no order",
    "urandom": "draws without a seed",
}


def modules(*floors: str) -> list[Path]:
    return [path for folder in floors for path in sorted((ROOT / folder).rglob("*.py"))]


def ways_out(tree: ast.Module) -> Iterator[str]:
    """Everything in a module that would make a run differ from its repetition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] in BANNED_MODULES:
                    yield f"line {node.lineno}: imports {name.name}"
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {name.name for name in node.names}
            if node.module.partition(".")[0] in BANNED_MODULES and not names <= NUMBERS:
                yield f"line {node.lineno}: imports from {node.module}"
            if node.module == "random" and any(name.name != "Random" for name in node.names):
                yield f"line {node.lineno}: draws from the global generator"
        elif isinstance(node, ast.Attribute):
            if node.attr in BANNED_ATTRIBUTES:
                yield f"line {node.lineno}: .{node.attr} {BANNED_ATTRIBUTES[node.attr]}"
            elif isinstance(node.value, ast.Name) and node.value.id == "random" and node.attr != "Random":
                yield f"line {node.lineno}: random.{node.attr} draws from the global generator"
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
                yield f"line {node.lineno}: calls {node.func.id}()"
            if isinstance(node.func, ast.Attribute) and node.func.attr == "open" and _a_path(node.func.value):
                yield f"line {node.lineno}: .open() opens a file"
            if isinstance(node.func, ast.Attribute) and node.func.attr == "unlink" and not node.args:
                yield f"line {node.lineno}: .unlink() touches files"  # `ctx.unlink` has an argument
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension) and _unordered(node.iter):
            yield f"line {node.iter.lineno}: goes over a set, which has no order"
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for call in ast.walk(node.value):
                if isinstance(call, ast.Call) and ast.unparse(call.func) in {"itertools.count", "count"}:
                    yield f"line {node.lineno}: a count of the whole process goes on from run to run"


def _a_path(source: ast.expr) -> bool:
    """Whether an expression looks like a path: `Path(...)`, `folder / name`, or by its name."""
    text = ast.unparse(source).lower()
    slash = isinstance(source, ast.BinOp) and isinstance(source.op, ast.Div)
    return slash or text.startswith("path(") or text.endswith(("path", "file", "folder", "directory"))


def _unordered(source: ast.expr) -> bool:
    if isinstance(source, ast.Set | ast.SetComp):
        return True
    if isinstance(source, ast.BinOp) and isinstance(source.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _unordered(source.left) or _unordered(source.right) or _keys(source.left)
    return isinstance(source, ast.Call) and ast.unparse(source.func) in {"set", "frozenset"}


def _keys(source: ast.expr) -> bool:
    return (
        isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "keys"
    )


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


PURE = [
    path
    for path in modules("actors", "supervisor", "transport", "configs", "nodeagent", "sim")
    if str(path.relative_to(ROOT)) not in ADAPTERS
]


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_module_uses_the_world_through_its_context(path: Path) -> None:
    assert not list(ways_out(parsed(path)))


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_every_listed_adapter_is_one_and_holds_no_actor(name: str) -> None:
    """Each entry of the list is needed, and no actor is defined in an adapter."""
    tree = parsed(ROOT / name)
    assert list(ways_out(tree)), f"{name} touches nothing: take it off the list"
    bases = [
        ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases
    ]
    assert "Actor" not in bases, f"{name} holds an actor: move what it touches elsewhere"


def holds_an_actor(tree: ast.Module) -> bool:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return any(ast.unparse(base) == "Actor" for cls in classes for base in cls.bases)


ACTORS = [
    path
    for path in modules("actors", "supervisor", "nodeagent")
    if "Actor" in path.read_text() and holds_an_actor(parsed(path))
]
WORLD = ("time", "random", "socket", "threading")
"""Modules that an actor's module must not use at all: it has `ctx.now()` and `ctx.rng`."""


def test_every_actor_of_a_running_system_is_checked() -> None:
    """The existing classes are listed, so no way of writing one bypasses the source check."""
    here = {Path(str(inspect.getsourcefile(cls))).resolve() for cls in vocabulary.actors()}
    assert len(here) >= 12
    assert here <= set(ACTORS)
    assert set(ACTORS) <= set(PURE)


@pytest.mark.parametrize("path", ACTORS, ids=lambda path: str(path.relative_to(ROOT)))
def test_actor_module_imports_no_world_and_no_adapter(path: Path) -> None:
    names = set(imported(parsed(path)))
    assert not names & set(WORLD)
    files = [name for name in ADAPTERS if name.startswith("actors/")]
    adapters = {f"gleaner.{name.removesuffix('.py').replace('/', '.')}" for name in files}
    assert not names & adapters


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


OFFENCES = {
    "import time": "imports time",
    "import time as clock": "imports time",
    "from time import monotonic": "imports from time",
    "import datetime": "imports datetime",
    "from random import random": "global generator",
    "import random\nrandom.seed(1)": "global generator",
    "import socket": "imports socket",
    "from socket import create_connection": "imports from socket",
    "import threading": "imports threading",
    "from concurrent.futures import ThreadPoolExecutor": "imports from concurrent",
    "import os": "imports os",
    "from os import environ": "imports from os",
    "from os import getenv": "imports from os",
    "TEXT = open('x').read()": "calls open()",
    "TEXT = Path('x').open().read()": ".open() opens a file",
    "TEXT = (folder / 'x').open()": ".open() opens a file",
    "TEXT = Path('x').read_text()": "opens a file",
    "Path('x').write_bytes(b'')": "opens a file",
    "CLOCK = __import__('time')": "calls __import__()",
    "CLOCK = importlib.import_module('time')": "hides what it imports",
    "WORK = asyncio.to_thread(print)": "starts a thread",
}
"""Each violation that an actor's module must not contain, in some of its spellings."""


@pytest.mark.parametrize("offence", OFFENCES, ids=lambda text: str(text).splitlines()[0])
@pytest.mark.parametrize(
    "name", ["actors/rollout/manager.py", "supervisor/names/registry.py", "nodeagent/agent.py"]
)
def test_planted_violation_in_an_actor_module_is_found(name: str, offence: str) -> None:
    """At the top of the module, and in the middle of a method."""
    source = (ROOT / name).read_text()
    at_top = f"{source}\n{offence}\n"
    line = next(line for line in source.splitlines() if line.startswith("    async def "))
    body = "".join(f"        {part}\n" for part in offence.splitlines())
    in_method = source.replace(line, f"    def planted(self) -> None:\n{body}\n{line}", 1)
    for planted in (at_top, in_method):
        assert any(OFFENCES[offence] in found for found in ways_out(ast.parse(planted)))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import time", "imports time"),
        ("from os import path", "imports from os"),
        ("import random\nrandom.random()", "global generator"),
        ("from random import choice", "global generator"),
        ("open('x')", "calls open()"),
        ("path.read_text()", "opens a file"),
        ("hash('a')", "calls hash()"),
        ("for x in {1, 2}: pass", "no order"),
        ("[x for x in set(y) - set(z)]", "no order"),
        ("for x in a.keys() & b: pass", "no order"),
        ("import itertools\nNUMBERS = itertools.count(1)", "from run to run"),
        ("import asyncio\nasyncio.TaskGroup()", "no order"),
    ],
)
def test_each_way_out_is_found(source: str, why: str) -> None:
    assert any(why in found for found in ways_out(ast.parse(source)))


def test_seeded_generator_and_sorted_set_are_allowed() -> None:
    fine = "import random\nrng = random.Random('1/x')\nfor x in sorted(set(y)): rng.random()"
    assert not list(ways_out(ast.parse(fine)))
