"""Rows in all shapes of problem files."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.actors.reward import rows
from gleaner.actors.reward.entries import Entry, Message

USER = {"role": "user", "content": "1 + 1?"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "1 + 1?", "answer": 2},
        {"prompt": [USER], "answer": 2},
        {"question": "1 + 1?", "answer": 2},
        {"prompt": [USER], "label": 2},  # slime
        {"prompt": [USER], "reward_model": {"style": "rule", "ground_truth": 2}},  # verl
    ],
    ids=["text", "messages", "gsm8k", "slime", "verl"],
)
def test_row_is_read_under_any_known_column_names(row: dict[str, object]) -> None:
    found = rows.entry(row)
    assert (found.question, found.messages, found.answer) == ("1 + 1?", (), 2)


def test_unknown_columns_go_to_info() -> None:
    row = {"prompt": "p", "answer": "a", "data_source": "gsm8k", "extra_info": {"index": 3}}
    assert rows.entry(row).info == {"data_source": "gsm8k", "index": 3}


def test_conversation_is_kept_and_gets_a_system_turn() -> None:
    found = rows.entry({"messages": [SYSTEM, USER]}, system="never put")
    assert found.messages == (Message(**SYSTEM), Message(**USER))
    found = rows.entry({"prompt": "1 + 1?"}, system="Be brief.")
    assert found.messages == (Message(**SYSTEM), Message(**USER))
    assert found.question == "1 + 1?"


def test_columns_are_named_by_settings() -> None:
    row = {"prompt": "not this", "q": "1 + 1?", "final": 2}
    found = rows.entry(row, {"prompt": "q", "answer": "final"})
    assert found == Entry(question="1 + 1?", answer=2, info={"prompt": "not this"})


def test_column_within_a_column_is_named_with_dots() -> None:
    inner = {"inputs": ["1"], "outputs": ["2"]}
    row = {"prompt": "p", "reward_model": {"ground_truth": json.dumps(inner)}, "a.b": 5}
    found = rows.entry(row, {"tests": "reward_model.ground_truth", "answer": "a.b"})
    assert (found.tests, found.answer) == ((inner,), 5)
    for name in ("reward_model.rule", "reward_model.ground_truth.inputs", "other.x", "a.c", "prompt.x"):
        with pytest.raises(rows.BadRow, match=f"no column {name!r}"):
            rows.entry(row, {"tests": name})


def test_tests_as_text_are_read_as_json() -> None:
    inner = {"inputs": ["1"], "outputs": ["2"]}
    assert rows.entry({"prompt": "p", "input_output": json.dumps(inner)}).tests == (inner,)
    assert rows.entry({"prompt": "p", "tests": [1, 2]}).tests == (1, 2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "expected an object, got a list"),
        ({"text": "x"}, "it has no prompt: expected one of prompt, messages, question, problem, got text"),
        ({"prompt": 3}, "prompt: expected a text or a list of messages, got a number"),
        ({"prompt": " "}, "prompt: it is empty"),
        ({"prompt": []}, "prompt: it is empty"),
        ({"prompt": [{"role": "robot", "content": "x"}]}, "message 0: role: expected one of"),
        ({"prompt": [{"role": "user", "content": 3}]}, "message 0: content: expected a text"),
        ({"prompt": ["x"]}, "message 0: expected an object"),
        ({"prompt": "p", "tests": "{"}, "tests: no JSON"),
        ({"prompt": "p", "tests": 3}, "tests: expected a list or an object, got a number"),
        ({"prompt": "p", "info": 3}, "info: expected an object, got a number"),
    ],
)
def test_invalid_row_is_refused_with_its_column(row: object, message: str) -> None:
    with pytest.raises(rows.BadRow, match=message):
        rows.entry(row)


def test_missing_named_column_is_refused() -> None:
    with pytest.raises(rows.BadRow, match="no column 'q'"):
        rows.entry({"prompt": "p"}, {"prompt": "q"})


@given(st.text(max_size=60))
def test_any_line_is_a_problem_or_refused(text: str) -> None:
    with contextlib.suppress(rows.BadRow):
        assert rows.line(text).question
