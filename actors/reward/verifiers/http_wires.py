"""Requests and replies of reward services: ours, slime, OpenRLHF, ROLL. Pure.

Owns bodies and their meaning. Does not own sockets, deadlines or retries (`http_rewards`). Sources: slime
`rm_hub`, OpenRLHF `remote_rm_url`, ROLL `remote_reward_system_worker.py`.
"""

import hashlib
import json
from collections.abc import Mapping

from gleaner.actors.reward.verifiers import call_forms
from gleaner.actors.reward.verifiers.call_forms import BadResult, FunctionResult, Item

Json = dict[str, object]

OWN, SLIME, OPENRLHF, ROLL = "own", "slime", "openrlhf", "roll"
MAX_SHOWN = 200
"""Characters of an answer in a detail."""


class BadAnswer(ValueError):
    """The reply of a service is no score; the text describes it."""


def body(style: str, item: Item, task: str, deadline_s: float) -> Json:
    """The request body for a response."""
    prompt = item["messages"] or item["prompt"]
    if style == SLIME:
        return {"prompt": prompt, "response": item["response"], "label": item["answer"]}
    if style == OPENRLHF:
        text = _text(item)
        return {"query": [f"{text}{item['response']}"], "prompts": [text], "labels": [item["answer"]]}
    if style == ROLL:
        text = _text(item)
        return {
            "priority": 0,
            "project_id": "gleaner",
            "experiment_id": task,
            "global_step": 0,
            "data_id": _digest(text),
            "rollout_id": _digest(f"{text}\0{item['response']}"),
            "prompt": text,
            "response": item["response"],
            "reward_info": {"answer": item["answer"], "info": item["info"]},
            "reward_manager": task,
            "timeout": deadline_s,
        }
    return dict(item)


def read(style: str, text: bytes) -> FunctionResult:
    """The score in an answer. Raises BadAnswer."""
    value = parsed(text)
    try:
        if style == OPENRLHF:
            return _openrlhf(value)
        if style == ROLL:
            return _roll(value)
        if isinstance(value, dict) and "score" not in value and "reward" in value:
            value = {**value, "score": value["reward"]}
        return call_forms.read(call_forms.OWN, value)
    except BadResult as problem:
        raise BadAnswer(f"{problem}: {shown(text)}") from None


def submitted(text: bytes) -> str:
    """ROLL's id of a task that was submitted. Raises BadAnswer."""
    value = parsed(text)
    if not isinstance(value, dict) or value.get("errcode") != 0:
        raise BadAnswer(f"it took no task: {shown(text)}")
    name = value.get("reward_request_id")
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise BadAnswer(f"it gave no reward_request_id: {shown(text)}")
    return str(name)


def running(text: bytes) -> bool:
    """Whether ROLL's task is still under way. Raises BadAnswer."""
    value = parsed(text)
    code = value.get("errcode") if isinstance(value, dict) else None
    if code not in (0, 1):
        raise BadAnswer(f"its task failed: {shown(text)}")
    return bool(code)


def parsed(text: bytes) -> object:
    """JSON. Raises BadAnswer."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadAnswer(f"it is no JSON: {shown(text)}") from None


def shown(text: bytes) -> str:
    """The beginning of an answer, on one line."""
    return repr(text[: 4 * MAX_SHOWN].decode("utf-8", "replace")[:MAX_SHOWN])


def _openrlhf(value: object) -> FunctionResult:
    if not isinstance(value, dict) or "rewards" not in value:
        raise BadResult("it returned no 'rewards'")
    parts: dict[object, object] = {"score": _only(value["rewards"])}
    logs = value.get("extra_logs")
    for name, one in (logs if isinstance(logs, dict) else {}).items():
        parts[str(name)] = _first(one)
    if "scores" in value:
        parts["scores"] = _first(value["scores"])
    return call_forms.read(call_forms.OWN, parts)


def _roll(value: object) -> FunctionResult:
    if not isinstance(value, dict) or "reward_score" not in value:
        raise BadResult("it returned no 'reward_score'")
    return call_forms.read(call_forms.OWN, value["reward_score"])


def _only(value: object) -> object:
    while isinstance(value, list):
        if len(value) != 1:
            raise BadResult(f"it returned {len(value)} rewards for 1 response")
        value = value[0]
    return value


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else value


def _text(item: Item) -> str:
    """The prompt as one text, for services that take no messages."""
    messages = item["messages"]
    assert isinstance(messages, list)
    return "\n".join(str(one["content"]) for one in messages if isinstance(one, Mapping)) or str(
        item["prompt"]
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
