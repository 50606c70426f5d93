"""Parts of a response: its thinking, its tagged answer, its fenced blocks.

Pure; finds text, parses none.
"""

import re
from dataclasses import dataclass

THINK_END = "</think>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
MAX_BLOCKS = 100
_FENCE = re.compile(r"([ \t]{0,12})(`{3,}|~{3,})(.*)")


def after_thinking(response: str) -> str:
    """The text after the thinking; the whole response if it has none."""
    return response.rpartition(THINK_END)[2]


def tagged(text: str) -> str | None:
    """The text between the last answer tags; None without tags."""
    before, end, _ = text.rpartition(ANSWER_END)
    _, begin, answer = before.rpartition(ANSWER)
    return answer.strip() if begin and end else None


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. info: the text behind its opening fence ("python", "py path=a.py")."""

    info: str
    content: str

    @property
    def language(self) -> str:
        """The first word of `info`, in small letters."""
        words = self.info.split()
        return words[0].lower() if words else ""


def blocks(text: str) -> list[Block]:
    """The fenced blocks that are closed, the last `MAX_BLOCKS` of them. A fence ends at one of the same
    character that is as long or longer, as in CommonMark."""
    found: list[Block] = []
    indent, fence, info = "", "", ""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _FENCE.fullmatch(line)
        if not fence:
            if match and not (match[2][0] == "`" and "`" in match[3]):
                indent, fence, info, lines = match[1], match[2], match[3].strip(), []
        elif match and match[2].startswith(fence) and not match[3].strip():
            found.append(Block(info, "\n".join(lines) + "\n" if lines else ""))
            fence = ""
        else:
            lines.append(line.removeprefix(indent))
    return found[-MAX_BLOCKS:]


def fenced(program: str) -> str:
    """A program in a fenced block, as in a response; a text with a fenced block is unchanged."""
    return program if blocks(program) else f"{'`' * 12}python\n{program}\n{'`' * 12}\n"
