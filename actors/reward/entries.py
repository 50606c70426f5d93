"""`Entry`: a problem as its verifier gets it, from any source. Pure.

Owns the fields and their meaning (docs/tasks.md). `problems` and `data` read problems, `verifiers` score
answers.
"""

from typing import Any

import msgspec

Json = Any
"""A value that JSON has."""


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation. role: "system", "user" or "assistant"."""

    role: str
    content: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One problem.

    question: the displayed part, the last user turn. messages: the conversation that the model answers;
    empty: the question alone. answer: the reference answer; its meaning is the verifier's. tests: for
    verifiers that run programs. info: further data of the problem, for a user's own functions.
    """

    question: str
    messages: tuple[Message, ...] = ()
    answer: Json = None
    tests: tuple[Json, ...] = ()
    info: dict[str, Json] = {}
