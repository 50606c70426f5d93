"""Parts of responses: fenced blocks, programs and tagged answers."""

import pytest

from gleaner.actors.reward.verifiers import responses
from gleaner.actors.reward.verifiers.programs import program_of
from gleaner.actors.reward.verifiers.responses import Block


def test_blocks_have_info_and_nested_fences_are_content() -> None:
    text = "a\n```python title=x\nx = 1\n```\nb\n~~~~\n```\ny\n```\n~~~~\n```py\ncut off"
    assert responses.blocks(text) == [Block("python title=x", "x = 1\n"), Block("", "```\ny\n```\n")]


def test_block_in_a_list_loses_its_fence_indent() -> None:
    text = "1. so:\n   ```python\n   if x:\n       y()\n   ```\n"
    assert responses.blocks(text) == [Block("python", "if x:\n    y()\n")]


def test_lines_end_at_newlines_alone() -> None:
    assert responses.blocks("```\r\nx = '\u2028\x0c'\r\n```\r\n") == [Block("", "x = '\u2028\x0c'\n")]


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```\n```python\nb\n```", "b\n"),
        ("```python\na\n```\n```bash\nls\n```", "a\n"),
        ("<think>```python\na\n```</think> no", None),
        ("```python\na", None),
        ("a = 1", None),
        ("```\na\n```", "a\n"),
        ("```cpp\na\n```", None),
    ],
)
def test_program_is_the_last_closed_python_block(response: str, program: str | None) -> None:
    assert program_of(response) == program


@pytest.mark.parametrize(
    ("text", "answer"),
    [("<answer>1</answer> <answer> 2 </answer>", "2"), ("<answer>1", None), ("1</answer>", None), ("", None)],
)
def test_last_tagged_answer_counts(text: str, answer: str | None) -> None:
    assert responses.tagged(text) == answer


def test_program_without_a_fence_is_fenced() -> None:
    program = 'text = """\n~~~\nx\n"""'
    assert program_of(responses.fenced(program)) == f"{program}\n"
    assert responses.fenced("so:\n```\na\n```") == "so:\n```\na\n```"
