from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.reward.problems import Problems, answer_of
from gleaner.actors.reward.task import tasks_of
from gleaner.actors.training.demonstrations import CAREFUL, demonstrate, spelling
from gleaner.actors.training.new_model import WarmStartProgress, new_model
from gleaner.configs.schema import Config, Model, WarmStart
from gleaner.configs.schema import Task as Settings

TINY = Model(
    hidden_size=16,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=8,
    intermediate_size=24,
    warm_start=WarmStart(steps=25, batch=8, learning_rate=1e-2),
)
PARAMS = {"min_word_len": 3, "max_word_len": 6}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    """One thread before the module's model is made, since two threads add in another order."""
    torch.set_num_threads(1)


def make(
    directory: Path, seed: int = 0, progress: Callable[[WarmStartProgress], None] = lambda _: None
) -> Path:
    new_model(directory, TINY, Problems("spell_backward", PARAMS, seed), seed, progress)
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[WarmStartProgress]]:
    progress: list[WarmStartProgress] = []
    return make(tmp_path_factory.mktemp("made") / "model", progress=progress.append), progress


def test_transformers_loads_the_model_with_the_same_logits(made: tuple[Path, object]) -> None:
    from transformers import AutoModelForCausalLM  # seconds: not in every worker

    theirs, ours = AutoModelForCausalLM.from_pretrained(made[0]), load_checkpoint(made[0])
    tokens = torch.randint(0, ours.config.vocab_size, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_random_weights_and_files_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen3ForCausalLM

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    spec = msgspec.structs.replace(TINY, warm_start=WarmStart(steps=0))
    new_model(ours, spec, Problems("spell_backward", PARAMS, 3), 3)
    for kind in (AutoConfig, GenerationConfig, AutoTokenizer):
        kind.from_pretrained(ours).save_pretrained(theirs)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        written = json.loads((theirs / name).read_text())
        for about_the_writer in ("transformers_version", "is_local", "local_files_only"):
            written.pop(about_the_writer, "")
        assert json.loads((ours / name).read_text()) == written, name
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (ours / name).read_text() == (theirs / name).read_text(), name
    torch.manual_seed(3)
    drawn = Qwen3ForCausalLM(AutoConfig.from_pretrained(ours)).state_dict()
    for name, weight in load_checkpoint(ours).state_dict().items():
        assert torch.equal(weight, drawn[name]), name


def test_transformers_makes_the_same_prompts_as_the_task(made: tuple[Path, object]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(made[0])
    task = tasks_of(Config(task=(Settings(params=PARAMS),)), made[0])
    for index in range(5):
        problem = task.problem("heldout", index)
        turn = [{"role": "user", "content": problem.question}]
        theirs = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        assert theirs == problem.prompt_tokens


def test_directory_is_a_whole_checkpoint_with_end_tokens(made: tuple[Path, object]) -> None:
    directory = made[0]
    names = {path.name for path in directory.iterdir()}
    needed = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert needed | {"tokenizer_config.json"} <= names
    from transformers import AutoTokenizer

    end = AutoTokenizer.from_pretrained(directory).convert_tokens_to_ids("<|end|>")
    assert load_checkpoint(directory).config.eos_token_ids == (end,)
    assert json.loads((directory / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert [path.name for path in directory.parent.iterdir()] == ["model"]


def test_warm_start_learns_and_reports_progress(made: tuple[Path, list[WarmStartProgress]]) -> None:
    progress = made[1]
    assert [(one.step, one.steps) for one in progress] == [(step, 25) for step in range(1, 26)]
    assert progress[-1].loss < 0.9 * progress[0].loss


def test_seed_determines_the_model(made: tuple[Path, object], tmp_path: Path) -> None:
    random.seed(5)
    torch.manual_seed(5)  # the state of global generators changes nothing
    again, other = make(tmp_path / "again"), make(tmp_path / "other", seed=1)
    first, second, third = (path / "model.safetensors" for path in (made[0], again, other))
    assert first.read_bytes() == second.read_bytes()
    assert (made[0] / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()
    assert first.read_bytes() != third.read_bytes()


def test_making_a_model_keeps_the_random_state(tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    make(tmp_path / "model")
    assert torch.equal(torch.rand(3), expected)


def test_existing_model_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match="model exists"):
        make(tmp_path / "model")


def test_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(progress: WarmStartProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "model", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_careful_demonstrations_are_right_and_careless_are_not() -> None:
    problems, rng = Problems("spell_backward", PARAMS, 0), random.Random(0)
    careful = 0
    for index in range(200):
        problem = problems.problem("warmup", index)
        text = demonstrate("spell_backward", problem, rng)
        score = 1.0 if answer_of(text).lower() == problem.answer.lower() else 0.0
        if "<think>" in text:
            careful += 1
            assert score == 1.0
        elif problem.answer.lower() != problem.answer[::-1].lower():
            assert score < 1.0
    assert careful / 200 == pytest.approx(CAREFUL, abs=0.1)


def test_work_numbers_letters_and_reads_them_backwards() -> None:
    assert spelling("sun") == "0s1u2n>2n1u0s"


def test_task_without_known_work_is_shown_by_its_answer() -> None:
    problem = Problems("chain_sum", {}, 0).problem("warmup", 0)
    assert demonstrate("chain_sum", problem, random.Random(0)) == f"<answer>{problem.answer}</answer>"
