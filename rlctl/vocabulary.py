"""All message kinds and actors of the product, found by search.

Owns the search: a module of the lower layers whose text names `Message` or `Actor` is imported, and its
definitions are taken. There is no list by hand, so nothing can be left out. Imports the engines and all their
dependencies: for documents and tests, never for a running process.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from gleaner.supervisor.actor import Actor
from gleaner.supervisor.message import Message, known_kinds

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("supervisor", "actors", "nodeagent", "rlctl")
"""Packages that may define messages; no run uses those of chaos and bench."""

_NAMES_ONE = re.compile(r"\b(?:Message|Actor)\b")


def kinds() -> dict[str, type[Message]]:
    """Message class by kind, in the order of their modules and, within one, of the source."""
    _import_all()
    found = [(name, cls) for name, cls in known_kinds().items() if _is_ours(cls)]
    return dict(sorted(found, key=lambda entry: entry[1].__module__))


def actors() -> list[type[Actor]]:
    """Actor classes with a handler, by module and name."""
    _import_all()
    found = {cls for cls in _below(Actor) if _is_ours(cls) and cls.handlers()}
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of these packages and its file."""
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            yield ".".join(("gleaner", *path.relative_to(ROOT).with_suffix("").parts)), path


def _import_all() -> None:
    for module, path in modules():
        if path.stem != "__main__" and _NAMES_ONE.search(path.read_text(encoding="utf-8")):
            importlib.import_module(module)


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith(tuple(f"gleaner.{floor}." for floor in FLOORS))


def _below(cls: type[Actor]) -> Iterator[type[Actor]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _below(sub)
