"""The prose of a file: docstrings, comments, log lines, help, and Markdown.

Owns the extraction. Code, names in backticks and addresses of links are no prose.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOG = {"debug", "info", "warning", "error", "exception", "critical"}
_HELP = {"help", "description", "epilog", "usage"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_CODE = re.compile(r"``.*?``|`[^`]*`|https?://\S+", re.DOTALL)
_MARKDOWN = re.compile(
    r"^```.*?^```|^~~~.*?^~~~|<!--(?!\s*prose: ok).*?-->|\]\([^)]*\)", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Text:
    """A piece of prose that begins at this line, counted from 1."""

    line: int
    text: str


def texts(path: Path) -> Iterator[Text]:
    """All prose of a `.py` or `.md` file; none of other files."""
    match path.suffix:
        case ".md":
            yield Text(1, _blank(_CODE, _blank(_MARKDOWN, path.read_text(encoding="utf-8"))))
        case ".py":
            source = path.read_text(encoding="utf-8")
            for text in (*_strings(ast.parse(source)), *_comments(source)):
                yield Text(text.line, _blank(_CODE, text.text))


def _strings(tree: ast.Module) -> Iterator[Text]:
    """Docstrings, those below attributes too, and the constant strings of help and of log lines."""
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            for statement in node.body:
                if isinstance(statement, ast.Expr):
                    yield from _constant(statement.value)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in _LOG and node.args:
                yield from _constant(node.args[0])
            for keyword in node.keywords:
                if keyword.arg in _HELP:
                    yield from _constant(keyword.value)


def _constant(node: ast.expr) -> Iterator[Text]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield Text(node.lineno, node.value)


def _comments(source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield Text(token.start[0], token.string.lstrip("# "))


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """`text` without what matches; its lines keep their numbers."""
    return pattern.sub(lambda found: " " + "\n" * found[0].count("\n"), text)
