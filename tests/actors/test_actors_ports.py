"""Imports of actors: an actor depends on ports, not on adapters; direct and indirect imports are searched.

The search leaves out the runtime below, which has its own port (`gleaner.supervisor.machine`).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ADAPTERS = {
    "gleaner.actors.cluster.checkpoint_store",
    "gleaner.actors.cluster.host_copy",
    "gleaner.actors.cluster.local_hosts",
    "gleaner.actors.cluster.sealed_folder",
    "gleaner.actors.engine.builtin.engine",
    "gleaner.actors.engine.builtin.row_blocks",
    "gleaner.actors.model.checkpoint",
    "gleaner.actors.engine.builtin.host",
    "gleaner.actors.engine.builtin_server.application",
    "gleaner.actors.engine.builtin_server.batch_loop",
    "gleaner.actors.engine.builtin_server.process",
    "gleaner.actors.engine.builtin_server.weights",
    "gleaner.actors.engine.servers.supervised_server",
    "gleaner.actors.engine.servers.host",
    "gleaner.actors.engine.servers.factory",
    "gleaner.actors.engine.servers.sglang",
    "gleaner.actors.engine.servers.sglang_weights",
    "gleaner.actors.engine.servers.vllm",
    "gleaner.actors.reward.worker_process",
    "gleaner.actors.gateway.control.unsupported_routes",
    "gleaner.actors.gateway.calls",
    "gleaner.actors.gateway.openai.routes",
    "gleaner.actors.gateway.openapi",
    "gleaner.actors.gateway.problems",
    "gleaner.actors.gateway.control.routes",
    "gleaner.actors.gateway.routes",
    "gleaner.actors.gateway.sglang.routes",
    "gleaner.actors.gateway.server",
    "gleaner.actors.gateway.call_texts",
    "gleaner.actors.gateway.trl.routes",
    "gleaner.actors.gateway.vllm.routes",
    "gleaner.actors.training.history",
    "gleaner.actors.training.policy_update",
    "gleaner.actors.training.trainer_files",
    "gleaner.actors.weights.control.file",
    "gleaner.actors.weights.delta.threads",
    "gleaner.actors.weights.disk.reader",
    "gleaner.actors.weights.disk.writer",
    "gleaner.actors.weights.image.store",
}
COMPUTE = {"torch", "safetensors", "tokenizers", "transformers"}


def file_of(module: str) -> Path:
    return ROOT / f"{module.removeprefix('gleaner.').replace('.', '/')}.py"


def imported(source: str) -> Iterator[str]:
    """Modules that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def reached(source: str) -> dict[str, str]:
    """Every module of `actors` that a source leads to, and every library, with the module that imports it."""
    found: dict[str, str] = {}
    todo = [("the actor itself", source)]
    while todo:
        importer, text = todo.pop()
        for module in imported(text):
            if module in found:
                continue
            found[module] = importer
            if module.startswith("gleaner.actors.") and file_of(module).is_file():
                todo.append((module, file_of(module).read_text()))
    return found


def actor_modules() -> list[str]:
    """Modules that define an actor."""
    found = []
    for path in sorted((ROOT / "actors").rglob("*.py")):
        text = path.read_text()
        if "Actor" not in text:
            continue
        classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
        if any(ast.unparse(base) == "Actor" for each in classes for base in each.bases):
            found.append(".".join(("gleaner", *path.relative_to(ROOT).with_suffix("").parts)))
    return found


def test_search_covers_all_actors() -> None:
    assert {
        "gleaner.actors.training.trainer",
        "gleaner.actors.engine.worker.worker",
        "gleaner.actors.weights.agent",
    } <= set(actor_modules())
    assert len(actor_modules()) == 17


@pytest.mark.parametrize("module", actor_modules())
def test_no_actor_reaches_an_adapter_or_a_compute_library(module: str) -> None:
    known = reached(file_of(module).read_text())
    wrong = {name for name in known if name in ADAPTERS or name.partition(".")[0] in COMPUTE}
    assert not wrong, "\n".join(f"{known[name]} imports {name}" for name in sorted(wrong))


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_every_adapter_exists_and_is_found_indirectly(adapter: str) -> None:
    assert file_of(adapter).is_file()
    assert adapter in reached(f"def late():\n    from {adapter} import anything")
    package, _, name = adapter.rpartition(".")
    assert adapter in reached(f"from {package} import {name}")


def test_search_follows_modules_in_between() -> None:
    assert "torch" in reached("import gleaner.actors.training.trainer_files")
