"""Commands of packages in higher layers, found by entry points.

This package cannot import those packages, so they register themselves. Owns the entry-point group
`rlctl.commands`: each entry names a module with an `add(commands)`, like those of `rlctl.commands`. A module
that cannot be loaded is reported on standard error and left out; the others still work.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, cast

from gleaner.rlctl.commands.terminal import Subparsers

GROUP = "rlctl.commands"


class Command(Protocol):
    """A module that declares commands."""

    def add(self, commands: Subparsers) -> None:
        """Declare them."""


def announced() -> Iterator[Command]:
    """Every registered module that can be loaded, in the order of the entries' names."""
    for entry in _entries():
        try:
            yield cast("Command", entry.load())
        except (ImportError, AttributeError) as problem:
            sys.stderr.write(f"rlctl: the commands of {entry.value} are left out: {problem}\n")


def _entries() -> list[EntryPoint]:
    """The entry points by name; where two packages register the same name, the first that Python finds."""
    by_name: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        by_name.setdefault(entry.name, entry)
    return [by_name[name] for name in sorted(by_name)]


def announced_names() -> list[str]:
    """The commands that other packages announce, whether or not they can be loaded."""
    return [entry.name for entry in _entries()]
