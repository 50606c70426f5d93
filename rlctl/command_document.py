"""`python -m gleaner.rlctl.command_document [FILE]`: write docs/cli.md, the page on the command line.

Owns the form of that page. Its text is the help of the commands themselves, read from their parsers, so the
page cannot describe an option that a command does not have.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from gleaner.nodeagent import cli
from gleaner.rlctl.__main__ import parser
from gleaner.rlctl.command_list import COMMANDS
from gleaner.rlctl.errors import MEANINGS
from gleaner.rlctl.extensions import announced_names

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
_HEAD = """\
<!-- made by `python -m gleaner.rlctl.command_document`: edit the help of the commands -->

# Command line

This page is made from the help of the commands. `rlctl COMMAND --help` prints the same.
"""
_LOWEST = 5  # level of a heading
_TAG = re.compile(r"(`[^`]*`)|<(?=[a-zA-Z/!])")  # not inside of code


def page() -> str:
    """The whole page."""
    parts = [_HEAD, f"## Exit codes\n\n{_codes()}"]
    root = parser([])
    parts.append(f"## rlctl\n\n{_prose(root.description or '')}")
    for name, group in _called():
        parts += _command(group, name, 3)
    parts += _command(cli.parser(), "nodeagent", 2)
    return "\n".join(f"{part.rstrip()}\n" for part in parts)


def _called() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command of `rlctl` with its own parser, in the order of the list in `rlctl --help`."""
    for name in [*COMMANDS, *announced_names()]:
        children, _ = _children(parser([name]))
        yield f"rlctl {name}", children[name]


def _command(own: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    """The sections of a command and of those below it."""
    children, lines = _children(own)
    body = [f"{'#' * min(level, _LOWEST)} {name}", _prose(own.description or "")]
    if lines:
        body.append(_table("command", [(f"`{name} {child}`", line) for child, line in lines.items()]))
    body.append(_table("argument", list(_arguments(own))))
    body.append(_examples(own.epilog or ""))
    yield "\n\n".join(filter(None, body))
    for child, sub in children.items():
        yield from _command(sub, f"{name} {child}", level + 1)


def _children(own: argparse.ArgumentParser) -> tuple[dict[str, argparse.ArgumentParser], dict[str, str]]:
    """The commands below a parser by name, and their lines of help."""
    for action in own._actions:
        if isinstance(action, argparse._SubParsersAction):
            lines = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return dict(action.choices), lines
    return {}, {}


def _arguments(own: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    formatter = argparse.HelpFormatter(own.prog)
    for action in own._actions:
        if action.help == argparse.SUPPRESS or isinstance(
            action, argparse._HelpAction | argparse._SubParsersAction
        ):
            continue
        meaning = formatter._expand_help(action) if action.help else ""
        if action.choices is not None and action.metavar:
            meaning = f"{meaning} (one of {', '.join(map(str, action.choices))})"
        yield f"`{_form(action)}`", meaning


def _form(action: argparse.Action) -> str:
    """How an argument is written: `--json FILE`, `--head A, --to A`, `RUN`."""
    if action.metavar is not None:
        value = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = action.dest.upper() if action.option_strings else action.dest
    if action.nargs == 0:
        value = ""
    if not action.option_strings:
        return f"[{value}]" if action.nargs in ("?", "*") else value
    many = " ..." if action.nargs in ("*", "+") else ""
    return f"{', '.join(action.option_strings)} {value}{many}".strip()


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    cells = [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows]
    return "\n".join([f"| {head} | meaning |", "|---|---|", *cells])


def _cell(text: str) -> str:
    return _prose(" ".join(text.split())).replace("|", "\\|")


def _prose(text: str) -> str:
    """Plain text as Markdown: pages and paths stay as they are, brackets are no tags."""
    return _TAG.sub(lambda found: found[1] or "&lt;", text.strip())


def _examples(epilog: str) -> str:
    text = textwrap.dedent(epilog.replace(MEANINGS, "").strip("\n").removeprefix("examples:\n")).strip("\n")
    return f"```text\n{text}\n```" if text.strip() else ""


def _codes() -> str:
    """The exit codes, one a line."""
    codes = MEANINGS.removeprefix("exit codes: ").split("; ")
    return _table("code", [(code, meaning) for code, _, meaning in (line.partition(" ") for line in codes)])


def main(arguments: list[str]) -> int:
    """Write the page."""
    path = Path(arguments[0]) if arguments else PAGE
    path.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
