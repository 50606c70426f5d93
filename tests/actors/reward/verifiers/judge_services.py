"""Answers of a scripted judge, for `reward_services`."""

import re
from typing import Any

from reward_services import Answer, replies


def asked(handler: Any) -> str:
    """The user message of a call."""
    return str(handler.body["messages"][1]["content"])


def nonce(handler: Any) -> str:
    """The id of a call."""
    found = re.search(r'"id": "(\w+)"', asked(handler).rpartition("Grade the response")[2])
    assert found
    return found[1]


def completion(text: str | None, finish: str = "stop", tokens: int = 0) -> dict[str, object]:
    """A completion with this text."""
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"total_tokens": tokens},
    }


def answers(text: str, **more: Any) -> Answer:
    """A judge's text; ID in it is the id of the call."""

    def answer(handler: Any) -> None:
        replies(completion(text.replace("ID", nonce(handler)), **more))(handler)

    return answer


def grades(score: object) -> Answer:
    """A judge's answer as it is asked for."""
    return answers(f'{{"id": "ID", "reason": "ok", "score": {score}}}')


def echoes(before: str = "", after: str = "") -> Answer:
    """A judge that repeats the whole field of the response, as it was sent and as it was."""

    def answer(handler: Any) -> None:
        field = asked(handler).partition("<response-")[2].partition("\n")[2].rpartition("\n</response-")[0]
        text = f"{before}\n{field}\n{after}".replace("ID", nonce(handler))
        replies(completion(text))(handler)

    return answer
