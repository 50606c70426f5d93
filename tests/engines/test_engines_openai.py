"""Clients of OpenAI's API with real SGLang servers behind the gateway: the SDK call by call, and others with
their defaults; then a death in the middle of a grammar."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from engine_kinds import ROOT
from pydantic import BaseModel
from sdk_clients import CLIENTS
from talking import Talking, loads

from gleaner.actors.model.checkpoint import load_checkpoint
from gleaner.actors.reward.prompts import Prompts

if TYPE_CHECKING:  # a second of imports in each process of the tests; most run none of these
    import openai

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def client(talking: Talking) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{talking.url}/v1", api_key="none", max_retries=0) as one:
        yield one


ASK: list[Any] = [{"role": "user", "content": "Spell abc."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


class Verdict(BaseModel):
    right: bool
    mark: int


SCHEMA = {
    "type": "object",
    "properties": {"right": {"type": "boolean"}, "mark": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["right", "mark"],
    "additionalProperties": False,
}


def chat(client: openai.OpenAI, model: str, **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=ASK, **{"max_tokens": 16, **more})


def models(client: openai.OpenAI, model: str) -> None:
    assert [one.id for one in client.models.list()] == [model]


def retrieve(client: openai.OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model


def plain(client: openai.OpenAI, model: str) -> None:
    answer = chat(client, model, temperature=0)  # else the first token may be the last
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 16


def streamed(client: openai.OpenAI, model: str) -> None:
    chunks = list(chat(client, model, stream=True, stream_options={"include_usage": True}, temperature=0))
    assert chunks[-1].usage.completion_tokens <= 16
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])


def several(client: openai.OpenAI, model: str) -> None:
    assert [choice.index for choice in chat(client, model, n=3).choices] == [0, 1, 2]


def stopped(client: openai.OpenAI, model: str) -> None:
    choice = chat(client, model, logit_bias={str(token_of(client, model, "x")): 100}, stop=["xx"]).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("", "stop")


def seeded(client: openai.OpenAI, model: str) -> None:
    chat(client, model, seed=7, temperature=0.5, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1)


def logprobs(client: openai.OpenAI, model: str) -> None:
    content = chat(client, model, logprobs=True).choices[0].logprobs.content
    assert all(one.logprob <= 0 for one in content)


def top_logprobs(client: openai.OpenAI, model: str) -> None:
    content = chat(client, model, logprobs=True, top_logprobs=3, temperature=0).choices[0].logprobs.content
    for one in content:
        assert len(one.top_logprobs) == 3
        assert one.top_logprobs[0].logprob == pytest.approx(one.logprob, abs=1e-4), "greedy: the likeliest"
        assert [top.logprob for top in one.top_logprobs] == sorted(
            (top.logprob for top in one.top_logprobs), reverse=True
        )


def tools_auto(client: openai.OpenAI, model: str) -> None:
    letters = {str(token_of(client, model, "x")): 100}
    assert set(chat(client, model, tools=[WEATHER], logit_bias=letters).choices[0].message.content) == {"x"}


def _checked(call: Any) -> None:
    assert call.function.name == "weather"
    result = json.loads(call.function.arguments)
    assert result["city"] in ("Paris", "Oslo")
    assert 1 <= result["days"] <= 9


def tools_required(client: openai.OpenAI, model: str) -> None:
    more = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    choice = chat(client, model, **more).choices[0]
    assert choice.finish_reason == "tool_calls"
    _checked(choice.message.tool_calls[0])


def tools_streamed(client: openai.OpenAI, model: str) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    chunks = chat(client, model, tools=[WEATHER], tool_choice=named, stream=True, max_tokens=200)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    _checked(calls[0])


def tools_answered(client: openai.OpenAI, model: str) -> None:
    made = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
    }
    turns = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(
        model=model,
        messages=turns,  # type: ignore[arg-type]  # as clients send them: dictionaries
        tools=[WEATHER],
        max_tokens=8,
    )
    assert answer.choices[0].message.content is not None


def json_object(client: openai.OpenAI, model: str) -> None:
    choice = chat(client, model, response_format={"type": "json_object"}, max_tokens=900).choices[0]
    assert choice.message.content.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def json_schema(client: openai.OpenAI, model: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
    result = json.loads(chat(client, model, response_format=form, max_tokens=200).choices[0].message.content)
    assert set(result) == {"right", "mark"}


def parsed(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=ASK, response_format=Verdict, max_tokens=200)
    assert isinstance(answer.choices[0].message.parsed, Verdict)


def token_of(client: openai.OpenAI, model: str, letter: str) -> int:
    result = client.completions.create(
        model=model, prompt=letter, max_tokens=1, extra_body={"return_token_ids": True}
    )
    return int(result.choices[0].model_extra["prompt_token_ids"][0])  # type: ignore[index]


def biased(client: openai.OpenAI, model: str) -> None:
    result = chat(client, model, logit_bias={str(token_of(client, model, "x")): 100})
    assert result.choices[0].message.content == 16 * "x"


def harmless(client: openai.OpenAI, model: str) -> None:
    fields = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "reasoning_effort": "low"}
    fields |= {"user": "me", "safety_identifier": "s", "prompt_cache_key": "k", "verbosity": "low"}
    chat(client, model, parallel_tool_calls=True, **fields)


def completion(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="abc", max_tokens=8, temperature=0)
    assert answer.choices[0].text


def completion_streamed(client: openai.OpenAI, model: str) -> None:
    full = {"ignore_eos": True}  # the model is random, and may draw its end of text
    chunks = list(
        client.completions.create(model=model, prompt="abc", max_tokens=8, stream=True, extra_body=full)
    )
    assert chunks[-1].choices[0].finish_reason == "length"


def completion_many(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=["abc", "de"], max_tokens=4, n=2)
    assert len(answer.choices) == 4
    assert len(client.completions.create(model=model, prompt=[[7, 8], [9]], max_tokens=4).choices) == 2


def completion_echoed(client: openai.OpenAI, model: str) -> None:
    """The request of an evaluation: the log-probs of a text under the model."""
    result = {}
    for limit in (0, 1):
        answer = client.completions.create(
            model=model, prompt="abcde", max_tokens=limit, echo=True, logprobs=1, temperature=0
        )
        choice = answer.choices[0]
        assert choice.text.startswith("abcde")
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == [*"abcde", *choice.text[5:]]
        assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 5][: 5 + limit]
        own, tops = choice.logprobs.token_logprobs, choice.logprobs.top_logprobs
        assert own is not None
        assert tops is not None
        assert own[0] is None
        assert tops[0] is None
        result[limit] = own[1:5]
        for name, logprob, top in zip(choice.logprobs.tokens[1:], own[1:], tops[1:], strict=True):
            assert top[name] == logprob <= max(top.values())
    assert result[0] == result[1]


def responses(client: openai.OpenAI, model: str) -> None:
    ask: dict[str, Any] = {"model": model, "input": "Spell abc.", "max_output_tokens": 16}
    answer = client.responses.create(**ask, temperature=0)  # else the first token may be the last
    assert answer.output_text
    with client.responses.stream(**ask, temperature=0) as stream:
        kinds = [event.type for event in stream]
        ends = ("response.incomplete", "response.completed")  # the model may end before the limit
        assert kinds[0] == "response.created"
        assert kinds[-1] in ends
        assert "response.output_text.delta" in kinds


CALLS: list[Callable[[openai.OpenAI, str], None]] = [
    models, retrieve, plain, streamed, several, stopped, seeded, logprobs, top_logprobs, tools_auto,
    tools_required, tools_streamed, tools_answered, json_object, json_schema, parsed, biased, harmless,
    completion, completion_streamed, completion_many, completion_echoed, responses,
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=[call.__name__ for call in CALLS])
def test_openai_sdk_call_is_served(
    call: Callable[[openai.OpenAI, str], None], client: openai.OpenAI, talking: Talking
) -> None:
    call(client, talking.model)


CLIENTS_HOME = ROOT / ".bench" / "clients"
CLIENT_S = 900.0  # all imports take a minute on an idle machine


FEW_IMPORTS = ("litellm", "langchain", "instructor")
"""Clients that start in seconds. The others are tried every night."""
AT_NIGHT = sorted(set(CLIENTS) - {"lm_eval", *FEW_IMPORTS})


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, talking: Talking) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The clients of this run of the tests, all at once, since they mostly import."""
    if not (CLIENTS_HOME / ".ready").exists():
        pytest.skip(f"there are no clients in {CLIENTS_HOME}: make clients")
    command = [CLIENTS_HOME / "bin" / "python", Path(__file__).parent / "sdk_clients.py"]
    there = [talking.url, talking.model, talking.model_dir]
    running = {
        name: subprocess.Popen(
            [*map(str, command), name, *map(str, there)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in CLIENTS
        if name in FEW_IMPORTS or any(item.get_closest_marker("long") for item in request.session.items)
    }
    yield running
    for process in running.values():
        process.kill()
        process.communicate()


def output_of(started: dict[str, subprocess.Popen[str]], name: str) -> Any:
    """Output of a client at its end."""
    out, complaints = started[name].communicate(timeout=CLIENT_S)
    assert started[name].returncode == 0, complaints[-4000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize(
    "name", [*FEW_IMPORTS, *(pytest.param(name, marks=pytest.mark.long) for name in AT_NIGHT)]
)
def test_client_with_its_defaults_is_served(started: dict[str, subprocess.Popen[str]], name: str) -> None:
    assert output_of(started, name)


@pytest.mark.long
def test_lm_eval_gets_the_model_log_likelihoods(
    started: dict[str, subprocess.Popen[str]], talking: Talking
) -> None:
    answer = output_of(started, "lm_eval")
    model, prompts = load_checkpoint(talking.model_dir), Prompts(talking.model_dir)
    for (context, text), logprob, greedy in zip(
        answer["pairs"], answer["logprobs"], answer["greedy"], strict=True
    ):
        given, made = (torch.tensor(prompts.encode_text(one)) for one in (context, text))
        with torch.inference_mode():
            logits = model(torch.cat([given, made])[None])[0][len(given) - 1 : -1]
        ours = torch.log_softmax(logits, -1).gather(1, made[:, None]).sum().item()
        assert logprob == pytest.approx(ours, abs=1e-3)
        assert greedy == bool((logits.argmax(-1) == made).all())


LONG = 100
MANY: dict[str, Any] = {"type": "array", "items": {"enum": [0, 1, 2]}, "minItems": LONG, "maxItems": LONG}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "many", "schema": MANY}}


async def test_killed_server_leaves_no_mark_in_grammar_text(talking: Talking) -> None:
    """Whole answers restart on the other server; a stream continues unchanged, or ends with an error."""
    import openai

    async with openai.AsyncOpenAI(base_url=f"{talking.url}/v1", api_key="none", max_retries=0) as client:

        def asked(**more: Any) -> Any:
            return client.chat.completions.create(
                model=talking.model, messages=ASK, response_format=FORM, max_tokens=1500, **more
            )

        whole = [asyncio.create_task(asked()) for _ in range(4)]
        stream, text, reason = await asked(stream=True, temperature=0), "", None
        hit: list[int] = []
        try:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason or reason
                if len(text) > 20 and not hit:
                    hit.append(await asyncio.to_thread(_strike, talking))
        except openai.APIError:
            assert hit, "the stream failed without a server death"
        else:
            assert reason == "stop"
            assert len(json.loads(text)) == LONG
        assert hit[0] > 0, "the server had requests"
        for task in whole:
            choice = (await task).choices[0]
            assert choice.finish_reason == "stop"
            made = json.loads(choice.message.content)
            assert len(made) == LONG
            assert set(made) <= {0, 1, 2}


def _strike(talking: Talking) -> int:
    """Kill a server and return the number of its requests."""
    had = loads(talking.url)[talking.proxies[1].url]
    talking.servers[1].kill()
    return had
