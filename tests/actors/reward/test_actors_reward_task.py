from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gleaner.actors.reward.problems import Problems
from gleaner.actors.reward.prompts import BadTokenizer, Prompts
from gleaner.actors.reward.task import Tasks, tasks_of
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer
from gleaner.configs.schema import Config
from gleaner.configs.schema import Task as Settings

PARAMS = {"min_word_len": 3, "max_word_len": 10}


SLOW_OR_FAST = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory as far as prompts go: tokenizer and chat template."""
    directory = tmp_path_factory.mktemp("model")
    problems = Problems("spell_backward", PARAMS, seed=0)
    questions = [problems.problem("warmup", index).question for index in range(50)]
    new_tokenizer(questions, []).save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return directory


@pytest.fixture(scope="module")
def task(model_dir: Path) -> Iterator[Tasks]:
    made = tasks_of(Config(task=(Settings(params=PARAMS),)), model_dir)
    yield made
    made.close()


def test_prompt_is_the_question_in_the_chat_template(task: Tasks, model_dir: Path) -> None:
    problem = task.problem("train", 3)
    tokenizer = Prompts(model_dir)._tokenizer
    text = tokenizer.decode(problem.prompt_tokens, skip_special_tokens=False)
    assert text == f"<|user|>{problem.question}<|assistant|>"
    assert "Spell this word backward" in problem.question


def test_common_words_of_questions_are_single_tokens(task: Tasks) -> None:
    problem = task.problem("heldout", 0)
    assert len(problem.prompt_tokens) < len(problem.answer) + 16 < len(problem.question)


def test_tokens_score_as_their_text(task: Tasks, model_dir: Path) -> None:
    problem = task.problem("train", 3)
    tokens = Prompts(model_dir).encode_text(f"<think>...</think><answer>{problem.answer}</answer><|end|>")
    assert task.score("train", 3, tokens).score == 1.0
    assert task.score("train", 3, tokens[:-4]).score < 1.0
    assert task.score("train", 4, tokens).score < 1.0


@given(st.lists(st.integers(-5, 2**40), max_size=40))
@settings(SLOW_OR_FAST, max_examples=30)
def test_garbage_tokens_score_without_an_exception(tokens: list[int]) -> None:
    assert _garbage_task is not None
    assert 0.0 <= _garbage_task.score("train", 0, tokens).score <= 1.0


_garbage_task: Tasks | None = None


@pytest.fixture(autouse=True, scope="module")
def _keep_task(task: Tasks) -> None:
    global _garbage_task
    _garbage_task = task


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
@settings(SLOW_OR_FAST, max_examples=30)
def test_printable_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = new_tokenizer(["Spell this: a", "Spell this: b"], [])
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_unknown_character_becomes_one_unknown_token() -> None:
    tokenizer = new_tokenizer([], ["é"])
    assert tokenizer.encode("é漢字").tokens == ["é", "<|unknown|>", "<|unknown|>"]


def test_prompt_without_a_template_is_the_bare_question(tmp_path: Path, model_dir: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    prompts = Prompts(tmp_path)
    assert prompts.decode(prompts.encode("spell: abc")) == "spell: abc"


def test_tokenizer_config_template_has_its_special_tokens(tmp_path: Path, model_dir: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    settings = {"chat_template": "{{ eos_token }}{{ messages[0].content }}", "eos_token": {"content": "#"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    prompts = Prompts(tmp_path)
    assert prompts.decode(prompts.encode("abc")) == "#abc"


@pytest.mark.parametrize("content", [None, "", "{", '{"version": "1.0"}', "\x00\x01"])
def test_missing_or_broken_tokenizer_is_refused_by_path(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(BadTokenizer, match=r"tokenizer\.json"):
        Prompts(tmp_path)


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages[0].content.nothing.at_all }}"])
def test_broken_template_is_refused(tmp_path: Path, model_dir: Path, template: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model_dir / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(BadTokenizer, match="template"):
        Prompts(tmp_path).encode("abc")
