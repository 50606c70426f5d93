"""Problems that come with a request, as entries, and the task that scores them. Pure.

Owns the choice of the task, the sizes, and the meaning of prompt, label and further data (docs/rewards.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gleaner.actors.gateway.ask import BadAsk
from gleaner.actors.reward import rows
from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward_service.asking import TooLong

MAX_RESPONSE_BYTES = 2**20
MAX_ENTRY_BYTES = 8 * 2**20
"""Of a problem as JSON: prompt, label, tests and further data."""
_NO_PROMPT = "-"


def task_of(names: Sequence[str], asked: str = "", own: str = "") -> str:
    """The task that scores a request. asked: by the parameter `task`. own: a field of the wire that names
    something; it counts where a task has that name. Raises BadAsk."""
    if asked:
        if asked in names:
            return asked
        raise BadAsk(f"no task is named {asked!r:.80}; there are {', '.join(names)}", "task")
    if own in names:
        return own
    if len(names) == 1:
        return names[0]
    raise BadAsk(f"name the task, as ?task=NAME: there are {', '.join(names)}", "task")


def response_of(text: str, field: str) -> str:
    """A response of a size that is scored. field: its name, for the error. Raises TooLong."""
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_RESPONSE_BYTES:
        raise TooLong(field, size_bytes, MAX_RESPONSE_BYTES)
    return text


def entry_of(prompt: object, answer: object, info: Mapping[str, Any] | None = None) -> Entry:
    """The problem of a prompt (a text or messages; None for a wire without one), a label and further data.
    Tests are in `info` under a name that rows of data have too. Raises BadAsk, TooLong."""
    more = dict(info or {})
    tests = {name: more.pop(name) for name in rows.TESTS if name in more}
    return entry_of_row({"prompt": prompt, "answer": answer, "info": more, **tests})


def entry_of_row(row: Mapping[str, Any]) -> Entry:
    """The problem of a row as a file of data has it, whose prompt may be None. Raises BadAsk, TooLong."""
    bare = row.get("prompt") in (None, "", [])
    try:
        entry = rows.entry({**row, "prompt": _NO_PROMPT} if bare else row)
    except rows.BadRow as problem:
        column, _, why = str(problem).partition(": ")
        raise BadAsk(why or column, column if why else "body") from None
    if bare:
        entry = msgspec.structs.replace(entry, question="")
    size_bytes = len(packed(entry))
    if size_bytes > MAX_ENTRY_BYTES:
        raise TooLong("the problem", size_bytes, MAX_ENTRY_BYTES)
    return entry


def with_label_as_tests(entry: Entry) -> Entry | None:
    """A problem whose label is its tests, as datasets of programs have it; None where it cannot be."""
    if entry.tests or not isinstance(entry.answer, str | dict | list):
        return None
    try:
        found = rows.entry({"prompt": _NO_PROMPT, "tests": entry.answer})
    except rows.BadRow:
        return None
    return msgspec.structs.replace(entry, tests=found.tests)


def packed(entry: Entry) -> bytes:
    """A problem as JSON. Raises BadAsk."""
    try:
        return msgspec.json.encode(entry)
    except (RecursionError, ValueError, TypeError) as problem:
        raise BadAsk(f"it cannot be written as JSON: {problem}", "body") from None
