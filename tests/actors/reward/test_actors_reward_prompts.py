"""Conversations rendered by the model's own chat template, as by transformers."""

from pathlib import Path

import pytest

from gleaner.actors.reward.prompts import BadConversation, Prompts
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer

TURNS = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


def prompts(directory: Path, template: str | None) -> Prompts:
    new_tokenizer(["Spell this word: house"], ["esuoh"]).save(str(directory / "tokenizer.json"))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return Prompts(directory)


def test_conversation_is_rendered_turn_by_turn(tmp_path: Path) -> None:
    here = prompts(tmp_path, CHAT_TEMPLATE)
    assert here.chat(TURNS) == "<|user|>one<|assistant|>two<|end|><|user|>three<|assistant|>"
    assert here.chat(TURNS[:2], generation_prompt=False) == "<|user|>one<|assistant|>two<|end|>"


def test_question_equals_a_conversation_of_one_turn(tmp_path: Path) -> None:
    here = prompts(tmp_path, CHAT_TEMPLATE)
    assert here.encode("one") == here.encode_text(here.chat(TURNS[:1]))


def test_caller_names_reach_the_template_and_replace_no_message(tmp_path: Path) -> None:
    here = prompts(tmp_path, "{{ enable_thinking }}{{ messages[0].content }}")
    assert here.chat(TURNS, names={"enable_thinking": False, "messages": []}) == "Falseone"


def test_template_refusal_keeps_its_message(tmp_path: Path) -> None:
    here = prompts(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadConversation, match="roles must alternate"):
        here.chat(TURNS)


def test_template_failure_on_a_message_refuses_the_conversation(tmp_path: Path) -> None:
    here = prompts(tmp_path, "{{ messages[0].content + 1 }}")
    with pytest.raises(BadConversation, match="TypeError"):
        here.chat(TURNS)


def test_model_without_a_template_refuses_conversations(tmp_path: Path) -> None:
    with pytest.raises(BadConversation, match="no chat template"):
        prompts(tmp_path, None).chat(TURNS)


def test_special_tokens_are_known_by_their_ids(tmp_path: Path) -> None:
    here = prompts(tmp_path, None)
    assert here.encode_text("<|end|>")[0] in here.special
    assert here.encode_text("<think>")[0] not in here.special
