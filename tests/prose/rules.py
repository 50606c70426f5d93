"""The words that our prose avoids, by group, each with what to write instead.

Owns the words. `texts` finds the prose; the settings (`limits`) set how often a word may occur.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

PERSONS = r"person|people|persons|users?|authors?|readers?|operators?|contributors?|maintainers?|developers?"
MARK = "prose: ok"
"""A line that has this may use any word: in a comment, or in Markdown as `<!-- prose: ok -->`."""


@dataclass(frozen=True)
class Rule:
    """One group of words. `use`: what to write instead."""

    group: str
    pattern: re.Pattern[str]
    use: str


@dataclass(frozen=True)
class Match:
    """A word of a group in a text, `line` lines below its first."""

    rule: Rule
    word: str
    line: int


def _rule(group: str, words: str, use: str) -> Rule:
    return Rule(group, re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE), use)


RULES = (
    _rule(
        "who", "who|whom|whoever|whomever", "the component's name (`who` right after a person's noun is fine)"
    ),
    _rule("nobody", "nobody|somebody|anybody|everybody", "the component's name, or a passive"),
    # `tell:` begins a parameter's documentation, as `say:` does, or a dead letter's reason: the operation.
    _rule("told", "told|tells?(?!:)|telling", "report, send, notify, show"),
    _rule("say", "says?(?!:)|said|saying", "report, state, name, list"),
    _rule("hear", "hears?|heard|hearing", "receive, get, arrive"),
    _rule("owe", "owes?|owed|owing", "must send, is pending, is overdue"),
    _rule("stands", "stands?|stood|lies", "is, is stored, is recorded, means"),
    _rule("archaic", "at the begin|in peace|by the thousand|comes not|come not|goes not", "modern English"),
    _rule("house", "house|rooms|a room|floors?|the tour", "package, module, layer"),
)
_PERSON = re.compile(rf"\b(?:{PERSONS})\s+$", re.IGNORECASE)


def matches(text: str) -> Iterator[Match]:
    """The avoided words of `text`, without those on marked lines and without a person's `who`."""
    lines = text.split("\n")
    for rule in RULES:
        for found in rule.pattern.finditer(text):
            line = text.count("\n", 0, found.start())
            person = rule.group == "who" and _PERSON.search(text, 0, found.start())
            if not person and MARK not in lines[line]:
                yield Match(rule, " ".join(found[0].split()).lower(), line)
