"""Clients of OpenAI's API with their defaults, one a process: `python sdk_clients.py NAME URL MODEL
MODEL_DIR`.

Runs in the environment of `.bench/clients`, not in the project's own. Prints a JSON object of what came; an
assertion that fails ends it.
"""

import asyncio
import json
import os
import sys
import tempfile
from typing import Any

os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
    "OPENAI_API_KEY": "none",
    "GLEANER_API_KEY": "none",
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
}

QUESTION = "Spell abc."


def weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: its name.
    """
    return f"sunny in {city}"


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def litellm(url: str, model: str, _: str) -> dict[str, Any]:
    import litellm

    name, there = f"openai/{model}", {"api_base": f"{url}/v1", "api_key": "none"}
    turns = [{"role": "user", "content": QUESTION}]
    whole = litellm.completion(model=name, messages=turns, **there)
    assert whole.choices[0].message.content is not None
    chunks = list(litellm.completion(model=name, messages=turns, stream=True, max_tokens=16, **there))
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    more = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 900}
    called = litellm.completion(model=name, messages=turns, **more, **there).choices[0]
    text = litellm.text_completion(
        model=f"text-completion-openai/{model}", prompt="abc", max_tokens=8, **there
    )
    assert text.choices[0].text
    return {"tokens": whole.usage.completion_tokens, "called": called.finish_reason}


def langchain(url: str, model: str, _: str) -> dict[str, Any]:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    class Verdict(BaseModel):
        right: bool
        mark: int

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, max_retries=0)
    assert chat.invoke(QUESTION).response_metadata["finish_reason"] in ("stop", "length")
    assert list(chat.stream(QUESTION, max_tokens=16))
    calls = chat.bind_tools([tool(weather)], tool_choice="weather").invoke(QUESTION).tool_calls
    chat.bind_tools([tool(weather)]).invoke(QUESTION, max_tokens=16)
    verdict = chat.with_structured_output(Verdict).invoke(QUESTION)
    assert isinstance(verdict, Verdict)
    items = ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=model, use_responses_api=True, max_tokens=16
    )
    items.invoke(QUESTION)
    assert list(items.stream(QUESTION))
    return {"called": [call["name"] for call in calls]}


def instructor(url: str, model: str, _: str) -> dict[str, Any]:
    import instructor
    import openai
    from pydantic import BaseModel

    class Verdict(BaseModel):
        right: bool
        mark: int

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    by_mode = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        asked = instructor.from_openai(client, mode=mode).chat.completions
        verdict = asked.create(
            model=model, messages=[{"role": "user", "content": QUESTION}], response_model=Verdict
        )
        assert isinstance(verdict, Verdict)
        by_mode[mode.value] = verdict.model_dump()
    return by_mode


def inspect(url: str, model: str, _: str) -> dict[str, Any]:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    @tool
    def forecast():  # type: ignore[no-untyped-def]
        async def execute(city: str) -> str:
            """Get the weather of a city.

            Args:
                city: its name.
            """
            return weather(city)

        return execute

    data = [Sample(input=QUESTION, target="c b a"), Sample(input="Say yes.", target="yes")]
    served = get_model(f"openai-api/gleaner/{model}", base_url=f"{url}/v1", api_key="none")
    plain = Task(dataset=data, solver=[generate()], scorer=includes())
    tools = Task(dataset=data, solver=[use_tools(forecast()), generate()], scorer=includes())
    rivals = Task(
        dataset=data, config=GenerateConfig(logprobs=True, top_logprobs=2, max_tokens=8), scorer=includes()
    )
    with tempfile.TemporaryDirectory() as logs:
        done = [eval(task, model=served, log_dir=logs, display="none")[0] for task in (plain, tools, rivals)]
        assert [one.status for one in done] == ["success"] * 3, [one.error for one in done]
        return {"samples": [len(one.samples or ()) for one in done]}


def lm_eval(url: str, model: str, model_dir: str) -> dict[str, Any]:
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import get_model

    def asked(kind: str, *arguments: Any) -> Instance:
        return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)

    given = f"model={model},tokenizer={model_dir},base_url={url}/v1"
    text = get_model("local-completions").create_from_arg_string(f"{given}/completions")
    pairs = [("abc", " de"), ("Spell abc.", "cba"), ("", "abc")][:2]
    likely = text.loglikelihood([asked("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
    limits = {"until": ["\n"], "max_gen_toks": 8}
    made = text.generate_until([asked("generate_until", QUESTION, limits)], disable_tqdm=True)
    assert isinstance(made[0], str)
    chat = get_model("local-chat-completions").create_from_arg_string(f"{given}/chat/completions")
    turn = json.dumps([{"role": "user", "content": QUESTION}])
    from lm_eval.models.api_models import JsonChatStr

    made = chat.generate_until([asked("generate_until", JsonChatStr(turn), limits)], disable_tqdm=True)
    assert isinstance(made[0], str)
    return {"pairs": pairs, "logprobs": [one[0] for one in likely], "greedy": [one[1] for one in likely]}


def verifiers(url: str, model: str, _: str) -> dict[str, Any]:
    import verifiers as vf
    from datasets import Dataset

    data = Dataset.from_list(
        [{"question": QUESTION, "answer": "cba"}, {"question": "Say yes.", "answer": "yes"}]
    )

    def right(completion: Any, answer: str) -> float:
        return float(answer in str(completion))

    env = vf.ToolEnv(tools=[weather], max_turns=2, eval_dataset=data, rubric=vf.Rubric(funcs=[right]))
    client = vf.ClientConfig(api_base_url=f"{url}/v1", api_key_var="OPENAI_API_KEY", max_retries=0)
    by_mode = {}
    for name, sampling in (("plain", {}), ("called", {"tool_choice": "required", "max_tokens": 900})):
        done = asyncio.run(env.evaluate(client, model, sampling_args=sampling, num_examples=2))
        outputs = done["outputs"]
        assert len(outputs) == 2
        assert not any(one.get("error") for one in outputs), outputs
        by_mode[name] = [[turn["role"] for turn in one["completion"]] for one in outputs]
    return by_mode


CLIENTS = {one.__name__: one for one in (litellm, langchain, instructor, inspect, lm_eval, verifiers)}

if __name__ == "__main__":
    print(json.dumps(CLIENTS[sys.argv[1]](*sys.argv[2:])))
