"""Rows of a file of problems, as entries, with any columns. Pure.

Owns the meaning of columns (docs/tasks.md). Known are our own names, those of verl (`reward_model`,
`extra_info`), slime and prime-rl (`label`, `metadata`), and TRL (`prompt`, and columns that its functions
get). A column that has no meaning here goes to `info`.
"""

import json
from collections.abc import Mapping
from typing import Any

from gleaner.actors.reward.entries import Entry, Json, Message

ROLES = ("system", "user", "assistant", "tool", "developer")
PROMPT = ("prompt", "messages", "question", "problem")
ANSWER = ("answer", "label", "ground_truth", "solution")
TESTS = ("tests", "input_output", "test_cases")
INFO = ("info", "metadata", "extra_info")
OURS = {"prompt": PROMPT, "answer": ANSWER, "tests": TESTS, "info": INFO}
MAX_PROMPT_CHARACTERS = 2**22


class BadRow(ValueError):
    """A row is no problem; the text names the column and the expected value."""


def entry(row: object, fields: Mapping[str, str] = {}, system: str = "") -> Entry:
    """The problem of a row. fields: names of columns for ours. system: a turn before the first, where the row
    has none. Raises `BadRow`."""
    if not isinstance(row, Mapping):
        raise BadRow(f"expected an object, got {_kind(row)}")
    columns = {str(name): value for name, value in row.items()}
    used: set[str] = set()
    messages = _messages(_take(columns, "prompt", fields, used))
    if system and (not messages or messages[0].role not in ("system", "developer")):
        messages = (Message("system", system), *messages)
    answer = _take(columns, "answer", fields, used)
    model = columns.get("reward_model")
    if answer is None and isinstance(model, Mapping):  # verl's
        answer = model.get("ground_truth")
    tests = _tests(_take(columns, "tests", fields, used))
    info = _take(columns, "info", fields, used)
    if info is not None and not isinstance(info, Mapping):
        raise BadRow(f"info: expected an object, got {_kind(info)}")
    more = {name: value for name, value in columns.items() if name not in used}
    question = next((one.content for one in reversed(messages) if one.role == "user"), messages[-1].content)
    plain = len(messages) == 1 and messages[0].role == "user"
    return Entry(
        question=question,
        messages=() if plain else messages,
        answer=answer,
        tests=tests,
        info={**more, **(info or {})},
    )


def line(text: str, fields: Mapping[str, str] = {}, system: str = "") -> Entry:
    """The problem of a line of JSON. Raises `BadRow`."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"no JSON: {error}") from None
    return entry(row, fields, system)


def _take(columns: dict[str, Any], ours: str, fields: Mapping[str, str], used: set[str]) -> Any:
    """The value of one of our fields, and a note of the column that it came from."""
    if ours in fields:
        column, value = _found(columns, fields[ours])
        if not column:
            raise BadRow(f"it has no column {fields[ours]!r}, which the setting `fields` names for {ours}")
        used.add(column)
        return value
    for name in OURS[ours]:
        if name in columns and name not in fields.values():
            used.add(name)
            return columns[name]
    if ours == "prompt":
        raise BadRow(
            f"it has no prompt: expected one of {', '.join(PROMPT)}, got {', '.join(columns) or 'nothing'}; "
            "name yours in the setting `fields`"
        )
    return None


def _found(columns: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """The column of that name and its value, or with dots in the name what is below its first part; "" for no
    such column."""
    if name in columns:
        return name, columns[name]
    column, _, below = name.partition(".")
    value: Any = columns.get(column)
    for key in below.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return "", None
        value = value[key]
    return column, value


def _messages(prompt: Any) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        turns: list[Any] = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, list | tuple) or hasattr(prompt, "tolist"):
        turns = list(prompt)
    else:
        raise BadRow(f"prompt: expected a text or a list of messages, got {_kind(prompt)}")
    found = tuple(_message(number, one) for number, one in enumerate(turns))
    if not any(one.content.strip() for one in found):
        raise BadRow("prompt: it is empty")
    if sum(len(one.content) for one in found) > MAX_PROMPT_CHARACTERS:
        raise BadRow(f"prompt: more than {MAX_PROMPT_CHARACTERS} characters")
    return found


def _message(number: int, one: Any) -> Message:
    if not isinstance(one, Mapping):
        raise BadRow(f"prompt: message {number}: expected an object with role and content, got {_kind(one)}")
    role, content = one.get("role"), one.get("content")
    if role not in ROLES:
        raise BadRow(f"prompt: message {number}: role: expected one of {', '.join(ROLES)}, got {role!r}")
    if not isinstance(content, str):
        raise BadRow(f"prompt: message {number}: content: expected a text, got {_kind(content)}")
    return Message(str(role), content)


def _tests(tests: Any) -> tuple[Json, ...]:
    if tests is None:
        return ()
    if isinstance(tests, str):  # some datasets have JSON in a column of text
        try:
            tests = json.loads(tests)
        except (ValueError, RecursionError) as error:
            raise BadRow(f"tests: no JSON: {error}") from None
    if isinstance(tests, Mapping):
        return (dict(tests),)
    if not isinstance(tests, list | tuple):
        raise BadRow(f"tests: expected a list or an object, got {_kind(tests)}")
    return tuple(tests)


def _kind(value: object) -> str:
    names = {type(None): "null", str: "a text", list: "a list", dict: "an object", bool: "true or false"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
