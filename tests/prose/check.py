"""The rate of avoided words per folder, compared with `[tool.prose.limits]`."""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.prose.rules import RULES, Match, matches
from tests.prose.texts import texts

UNIT = 10_000  # words: limits are occurrences in so many
GROUPS = tuple(rule.group for rule in RULES)
_MADE = re.compile(r"^<!-- made by ", re.IGNORECASE | re.MULTILINE)  # the first lines of such a page
_WITHOUT_LITERALS = {"tests"}  # strings there are samples, and texts that the packages own
Limits = Mapping[str, Mapping[str, float]]


class BadSettings(ValueError):
    """`[tool.prose]` names a folder that is not there, or a group that does not exist."""


@dataclass(frozen=True)
class Finding:
    """An avoided word in a file."""

    path: str
    line: int
    match: Match

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.match.word}: use {self.match.rule.use}"


@dataclass
class Folder:
    """The prose below one folder, or of one file."""

    name: str
    words: int = 0
    findings: list[Finding] = field(default_factory=list)

    def of(self, group: str) -> list[Finding]:
        """The findings of one group of words."""
        return [finding for finding in self.findings if finding.match.rule.group == group]

    def rates(self) -> dict[str, float]:
        """Occurrences in 10,000 words, by group."""
        counts = Counter(finding.match.rule.group for finding in self.findings)
        return {group: counts[group] * UNIT / max(self.words, 1) for group in GROUPS}


def read_limits(root: Path) -> Limits:
    """The limits of every folder by group of words. Raises `BadSettings`."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    limits: Limits = settings["tool"]["prose"]["limits"]
    for name, groups in limits.items():
        if not (root / name).exists():
            raise BadSettings(f"[tool.prose.limits]: there is no {name}")
        if set(groups) != set(GROUPS):
            raise BadSettings(f"[tool.prose.limits] {name}: expected a limit for each of {', '.join(GROUPS)}")
    return limits


def measure(root: Path, name: str) -> Folder:
    """Read all prose below `root / name`."""
    folder = Folder(name)
    for path in _files(root / name):
        if _is_made(path):
            continue
        shown = path.relative_to(root).as_posix()
        for text in texts(path, literals=name not in _WITHOUT_LITERALS):
            folder.words += len(text.text.split())
            folder.findings += [Finding(shown, text.line + it.line, it) for it in matches(text.text)]
    return folder


def exceeded(folder: Folder, limits: Mapping[str, float]) -> list[str]:
    """A line for each finding of a group above its limit, then one with its rate; else nothing."""
    lines: list[str] = []
    for group, rate in folder.rates().items():
        if rate > limits[group]:
            lines += [str(finding) for finding in folder.of(group)]
            lines.append(
                f"{folder.name}: words of the group `{group}`: {rate:.1f} in {UNIT:,} words, at most "
                f"{limits[group]:g} by [tool.prose.limits] in pyproject.toml"
            )
    return lines


def _is_made(path: Path) -> bool:
    """Whether it is a page made from docstrings and help, which are checked at their source."""
    return path.suffix == ".md" and bool(_MADE.search(path.read_text(encoding="utf-8")[:600]))


def _files(start: Path) -> Iterator[Path]:
    if start.is_file():
        yield start
        return
    for folder, names, files in os.walk(start):
        names[:] = sorted(name for name in names if not name.startswith((".", "__pycache__", "build")))
        yield from (Path(folder) / file for file in sorted(files) if file.endswith((".py", ".md")))
