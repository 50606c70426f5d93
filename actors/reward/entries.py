"""A problem as its verifier gets it, whatever it was read from. Pure.

Owns the shape and its fields' meaning (docs/tasks.md). Does not own where problems come from (`problems`,
`data`) or what an answer is worth (`verifiers`).
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

    question: what is shown of it, the last user turn. messages: the conversation that the model answers;
    empty: the question alone. answer: what a right answer is compared with; its meaning is the verifier's.
    tests: of verifiers that run programs. info: what else stands with the problem, for one's own functions.
    """

    question: str
    messages: tuple[Message, ...] = ()
    answer: Json = None
    tests: tuple[Json, ...] = ()
    info: dict[str, Json] = {}
