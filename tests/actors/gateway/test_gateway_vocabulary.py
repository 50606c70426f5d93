"""OpenAI's calls with a real tokenizer and chat template: those of a checkpoint directory."""

from pathlib import Path

from gleaner.actors.gateway.routes import ROUTES
from gleaner.actors.reward.prompts import Prompts
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, END, new_tokenizer
from tests.actors.gateway.clients import plain_openai, skyrl
from tests.actors.gateway.gateway_world import pieces, serving

QUESTION = "Spell this word: house"


def words(directory: Path) -> Prompts:
    new_tokenizer([QUESTION], ["esuoh"]).save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return Prompts(directory)


async def test_conversation_follows_the_checkpoint_tokenizer_and_template(
    tmp_path: Path,
) -> None:
    prompts = words(tmp_path)
    answer = prompts.encode_text(f"<answer>esuoh</answer>{END}")
    async with serving(ROUTES, pieces(answer, [1, 4]), vocabulary=prompts) as world:
        rolled = await plain_openai.chat(world.url, "tiny", QUESTION, 64)
        rendered = await skyrl.render(world.url, "tiny", QUESTION)
        again = await skyrl.detokenize(world.url, "tiny", rendered)
        asked = list(world.requests.asked[0].prompt)
    assert rolled.text == "<answer>esuoh</answer>", "its end token is no text"
    assert len(rolled.logprobs) == len(answer), "but a token with a log-prob"
    assert asked == rendered == prompts.encode(QUESTION)
    assert again == f"<|user|>{QUESTION}<|assistant|>"


def test_tools_are_rendered_as_by_transformers(tmp_path: Path) -> None:
    prompts = words(tmp_path)
    parameters = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": ["<é>&'"]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    call = {"type": "function", "function": {"name": "f", "arguments": {"b": "x", "a": "<é>&'"}}}
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "ok"},
    ]
    from transformers import PreTrainedTokenizerFast  # seconds: not in every worker

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    theirs.chat_template = CHAT_TEMPLATE
    expected = theirs.apply_chat_template(turns, tools=tools, add_generation_prompt=True, tokenize=False)
    assert prompts.chat(turns, names={"tools": tools}) == expected
    assert '"b": {"type"' in expected.split('"a"')[0], "in the order of the client"
