"""An actor knows ports, not what stands behind them: what its module imports, and that imports, is searched.

Not searched is the runtime below, which has its own port (`supervisor.machine`).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ADAPTERS = {
    "actors.cluster.checkpoint_store",
    "actors.cluster.host_copy",
    "actors.cluster.local_hosts",
    "actors.cluster.sealed",
    "actors.engine.builtin",
    "actors.engine.checkpoint",
    "actors.engine.host",
    "actors.engine.server.application",
    "actors.engine.server.batching",
    "actors.engine.server.process",
    "actors.engine.server.weights",
    "actors.engine.own_server",
    "actors.engine.remote",
    "actors.engine.servers",
    "actors.engine.sglang",
    "actors.engine.sglang_weights",
    "actors.engine.vllm",
    "actors.reward.worker_process",
    "actors.rollout.gateway.absent_routes",
    "actors.rollout.gateway.calls",
    "actors.rollout.gateway.openai_routes",
    "actors.rollout.gateway.openapi",
    "actors.rollout.gateway.problems",
    "actors.rollout.gateway.control_routes",
    "actors.rollout.gateway.routes",
    "actors.rollout.gateway.sglang_routes",
    "actors.rollout.gateway.server",
    "actors.rollout.gateway.texts",
    "actors.rollout.gateway.trl_routes",
    "actors.rollout.gateway.vllm_routes",
    "actors.training.history",
    "actors.training.policy_update",
    "actors.training.trainer_files",
    "actors.weights.control_file",
    "actors.weights.delta_threads",
    "actors.weights.disk_reader",
    "actors.weights.disk_writer",
    "actors.weights.image_store",
}
COMPUTE = {"torch", "safetensors", "tokenizers", "transformers"}


def file_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


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
        who, text = todo.pop()
        for module in imported(text):
            if module in found:
                continue
            found[module] = who
            if module.startswith("actors.") and file_of(module).is_file():
                todo.append((module, file_of(module).read_text()))
    return found


def actor_modules() -> list[str]:
    """Modules that define an actor."""
    found = []
    for path in sorted((ROOT / "actors").rglob("*.py")):
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        if any(ast.unparse(base) == "Actor" for each in classes for base in each.bases):
            found.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return found


def test_all_actors_are_looked_at() -> None:
    assert {"actors.training.trainer", "actors.engine.worker", "actors.weights.agent"} <= set(actor_modules())
    assert len(actor_modules()) == 13


@pytest.mark.parametrize("module", actor_modules())
def test_no_actor_leads_to_an_adapter_or_to_a_library_that_computes(module: str) -> None:
    known = reached(file_of(module).read_text())
    wrong = {name for name in known if name in ADAPTERS or name.partition(".")[0] in COMPUTE}
    assert not wrong, "\n".join(f"{known[name]} imports {name}" for name in sorted(wrong))


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_every_adapter_exists_and_the_search_finds_it_behind_another_module(adapter: str) -> None:
    assert file_of(adapter).is_file()
    assert adapter in reached(f"def late():\n    from {adapter} import anything")
    package, _, name = adapter.rpartition(".")
    assert adapter in reached(f"from {package} import {name}")


def test_the_search_goes_through_modules_in_between() -> None:
    assert "torch" in reached("import actors.training.trainer_files")
