"""docs/cli.md is generated from the parsers, with every command and option."""

from gleaner.nodeagent import cli
from gleaner.rlctl import command_document
from gleaner.rlctl.__main__ import parser
from gleaner.rlctl.command_list import COMMANDS

TEXT = command_document.PAGE.read_text(encoding="utf-8")


def test_cli_page_is_generated_from_the_parsers() -> None:
    made = command_document.page()
    assert made == TEXT, "docs/cli.md is behind the code: run `python -m gleaner.rlctl.command_document`"


def test_cli_page_has_a_section_for_every_command() -> None:
    headings = {line.lstrip("# ") for line in TEXT.splitlines() if line.startswith("#")}
    assert {f"rlctl {name}" for name in [*COMMANDS, "sim", "chaos"]} <= headings
    assert {"rlctl sim replay", "rlctl model new", "nodeagent start"} <= headings


def test_cli_page_has_every_option_of_usage_lines() -> None:
    for usage in (parser(["generate"]), cli.parser()):
        children, _ = command_document._children(usage)
        for name, child in children.items():
            if child.format_usage().count("--") and name in ("generate", "start"):
                section = TEXT.partition(f" {child.prog}\n")[2].partition("\n#")[0]
                named = [word.strip("[]") for word in child.format_usage().split() if word.startswith("[--")]
                assert named
                assert all(f"`{word}" in section or f", {word}" in section for word in named), child.prog


def test_cli_page_escapes_brackets_and_keeps_code() -> None:
    assert command_document._prose("runs/<id>/ and `<node>`") == "runs/&lt;id>/ and `<node>`"
