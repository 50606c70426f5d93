"""The folders of examples/: each does what its text describes."""

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gleaner.actors.reward.sandbox.detection import NoSandbox, detect
from gleaner.rlctl.__main__ import main
from gleaner.supervisor import Message, Refused
from gleaner.supervisor.actor_test_kit import ActorTestKit
from tests.gateway.gateway_runs import Processes, healthy
from tests.gateway.small_model import make_folder
from tests.rlctl.test_rlctl_publish import World, job, world

__all__ = ["job", "world"]  # fixtures: a job without a trainer, in one process
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*words: str | Path) -> list[str]:
    """The lines that a script prints."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def load(name: str) -> ModuleType:
    """A script of an example as a module."""
    path = EXAMPLES / name
    spec = importlib.util.spec_from_file_location(f"example_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # msgspec looks types up there
    spec.loader.exec_module(module)
    return module


def test_every_example_is_in_the_list() -> None:
    listed = set(re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert listed == {
        path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"
    }


def test_own_actor_keeps_its_budget_over_restart(tmp_path: Path) -> None:
    script = EXAMPLES / "own_actor" / "budget.py"
    crash = "spend -1: the actor crashed and was restarted"
    assert run(script, tmp_path) == ["spend 4: 6 left", crash, "spend 0: 6 left"]
    assert run(script, tmp_path) == ["spend 4: 2 left", crash, "spend 0: 2 left"]
    refusal = "spend 4: 4 hours are more than the 2 that are left"
    assert run(script, tmp_path) == [refusal, crash, "spend 0: 2 left"]


def test_own_actor_refuses_more_than_its_budget() -> None:
    budget = load("own_actor/budget.py")

    def spend(hours: int) -> Message:
        message: Message = budget.Spend(hours=hours)
        return message

    with ActorTestKit(budget.Budget) as stage:
        assert stage.ask(spend(10), budget.Left).hours == 0
        stage.crash()
        with pytest.raises(Refused, match="1 hours are more than the 0"):
            stage.ask(spend(1), budget.Left)


@pytest.mark.parametrize(
    ("name", "scores", "references"),
    [
        ("own_reward/job", {"sums"}, 0),
        ("mixed/job", {"math", "code", "brief"}, 0),
        ("code/code", {"programs"}, 10),
    ],
)
def test_example_of_rewards_passes_its_data_check(
    name: str,
    scores: set[str],
    references: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        detect("auto")
    except NoSandbox as problem:
        pytest.skip(str(problem))
    monkeypatch.chdir(tmp_path)
    verified = ["--verify-reference"] if references else []
    assert main(["check", str(EXAMPLES / f"{name}.toml"), "--json", *verified]) == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert {task["task"] for task in tasks} == scores
    assert sum(task["solutions"] for task in tasks) == references


@pytest.mark.long
@pytest.mark.realprocess
@pytest.mark.alone
@pytest.mark.timeout(600)
def test_programs_with_tests_are_trained_on_by_one_command(tmp_path: Path) -> None:
    try:
        detect("auto")
    except NoSandbox as problem:
        pytest.skip(str(problem))
    small = ["job.steps=1", "rollout.prompts=2", "rollout.samples=2", "rollout.max_new_tokens=8"]
    small += ["training.micro_batch_groups=2", "model.warm_start.steps=1"]
    words = ["run", EXAMPLES / "code" / "code.toml", "--runs-dir", tmp_path]
    for one in small:
        words += ["--set", one]
    lines = run("-m", "gleaner.rlctl", *words)
    assert any("step 1/1  reward -0.100" in line for line in lines), lines  # no answer holds a program
    assert any(re.fullmatch(r" *verdicts +no_answer [0-9]+", line) for line in lines), lines


async def test_own_trainer_publishes_versions_an_instance_serves(world: World) -> None:
    model = world.model("mine", 0)
    newest = await asyncio.to_thread(load("own_trainer/train.py").train, world.address, model)
    assert newest == 3
    await world.serves(newest)


@pytest.mark.realprocess
@pytest.mark.timeout(300)
def test_openai_client_is_answered_by_the_gateway(tmp_path: Path) -> None:
    model, processes = make_folder(tmp_path / "model", 1), Processes(tmp_path)
    try:
        processes.start("engine", "engine", "serve", "--model", str(model), "--listen", "127.0.0.1:0")
        state = ("--state-dir", str(tmp_path / "state"))
        engine = processes.url("engine")
        processes.start("gateway", "gateway", "--listen", "127.0.0.1:0", "--engine-url", engine, *state)
        url = processes.url("gateway")
        processes.wait(lambda: healthy(url), "the engine to be in use")
        chat, completion = run(EXAMPLES / "openai_client" / "client.py", url)
    finally:
        processes.close()
    assert re.fullmatch(r"chat \((stop|length)\): (['\"]).*\2", chat)
    assert re.fullmatch(r"completion \((stop|length)\): [1-8] tokens", completion)


def test_spot_trace_is_replayed_with_its_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = EXAMPLES / "spot_trace"
    trace = str(folder / "trace.csv")
    words = ["simulate", str(folder / "job.toml"), "--trace", trace, "--json", "--out", str(tmp_path)]
    assert main(words) == 0
    runs = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    assert {one["ended"] for one in runs.values()} == {"done"}
    assert runs["job"]["figures"]["instances"] > runs["co-located"]["figures"]["instances"] == 0
    assert (tmp_path / "simulate.html").exists()
