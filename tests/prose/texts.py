"""The prose of a file: docstrings, comments, log lines, help, other texts that code shows, and Markdown.

Owns the extraction. Code, names in backticks and addresses of links are no prose.
"""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

_LOG = {"debug", "info", "warning", "error", "exception", "critical"}
_HELP = {"help", "description", "epilog", "usage"}
_SHORTEST = (
    3  # words: shorter literals are names, keys and formats; errors, wait labels and reports are longer
)
_SOURCE = "        "  # a piece of source code, as planted bugs have them
_VALUE = "{}"  # what an f-string inserts, in its text
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


def texts(path: Path, literals: bool = True) -> Iterator[Text]:
    """All prose of a `.py` or `.md` file; none of other files.

    literals: also strings of three words and more that are neither documentation, log lines nor help.
    """
    match path.suffix:
        case ".md":
            yield Text(1, _blank(_CODE, _blank(_MARKDOWN, path.read_text(encoding="utf-8"))))
        case ".py":
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
            nodes = _documentation(tree)
            if literals:
                nodes |= _literals(tree, without=nodes)
            for text in (*nodes.values(), *_comments(source)):
                yield Text(text.line, _blank(_CODE, text.text))


def _documentation(tree: ast.Module) -> dict[int, Text]:
    """Docstrings, those below attributes too, and the constant strings of help and of log lines, by node."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            found += [statement.value for statement in node.body if isinstance(statement, ast.Expr)]
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in _LOG:
                found += node.args[:1]
            found += [keyword.value for keyword in node.keywords if keyword.arg in _HELP]
    return {id(node): Text(node.lineno, text) for node in found if (text := _constant(node)) is not None}


def _literals(tree: ast.Module, without: Collection[int]) -> dict[int, Text]:
    """The other strings of `_SHORTEST` words and more, by node; an f-string is one text."""
    texts: dict[int, Text] = {}
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            text: str | None = "".join(_constant(part) or _VALUE for part in node.values)
        else:
            text = None if id(node) in inside or id(node) in without else _constant(node)
        if text is not None and len(text.split()) >= _SHORTEST and not text.startswith(_SOURCE):
            texts[id(node)] = Text(getattr(node, "lineno", 1), text)
    return texts


def _constant(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _comments(source: str) -> Iterator[Text]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield Text(token.start[0], token.string.lstrip("# "))


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """`text` without what matches; its lines keep their numbers."""
    return pattern.sub(lambda found: " " + "\n" * found[0].count("\n"), text)
