"""Signatures of constructors: few arguments each, and no actor depends on all settings."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(link.name for link in (ROOT / "gleaner").iterdir() if link.is_symlink())
MOST = 6  # beyond that, arguments that belong together become a frozen struct with a name

LONG = {
    "supervisor/pending_asks.py:PendingAsk": "one for each ask: a struct would be another object there",
}
"""Longer ones that stay, each with the reason."""

ALL_SETTINGS = {
    "actors/training/controller.py:RLController": "the history begins with all resolved settings",
}
"""Actors that take all of `Config`, each with the reason."""


def constructors(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for own in node.body:
                if isinstance(own, ast.FunctionDef) and own.name == "__init__":
                    yield node, own


def arguments_of(init: ast.FunctionDef) -> list[ast.arg]:
    """All but `self`, with those of `*` and `**`."""
    own = init.args
    found = [*own.posonlyargs, *own.args, *own.kwonlyargs]
    return found[1:] + [one for one in (own.vararg, own.kwarg) if one is not None]


def too_long(tree: ast.Module) -> dict[str, int]:
    counts = {owner.name: len(arguments_of(init)) for owner, init in constructors(tree)}
    return {name: count for name, count in counts.items() if count > MOST}


def takes_all_settings(tree: ast.Module) -> set[str]:
    return {
        owner.name
        for owner, init in constructors(tree)
        if any(isinstance(base, ast.Name) and base.id == "Actor" for base in owner.bases)
        for one in arguments_of(init)
        if one.annotation is not None and "Config" in ast.unparse(one.annotation).split(" | ")
    }


@cache
def found() -> tuple[set[str], set[str]]:
    """Long constructors, and actors that take all settings; each file is parsed once for both tests."""
    long, greedy = set[str](), set[str]()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            where = path.relative_to(ROOT)
            long |= {f"{where}:{name}" for name in too_long(tree)}
            greedy |= {f"{where}:{name}" for name in takes_all_settings(tree)}
    return long, greedy


def test_a_constructor_takes_at_most_six_arguments() -> None:
    long, _ = found()
    assert long == LONG.keys()


def test_an_actor_takes_the_sections_of_the_settings_that_it_reads() -> None:
    _, greedy = found()
    assert greedy == ALL_SETTINGS.keys()


@pytest.mark.parametrize(
    "arguments", ["a, b, c, d, e, f, g", "a, b, c, *, d, e, f, g=1", "a, /, b, c, d, e, *f, **g"]
)
def test_a_planted_long_constructor_is_found(arguments: str) -> None:
    planted = f"class Long:\n    def __init__(self, {arguments}) -> None: ...\n"
    assert too_long(ast.parse(planted)) == {"Long": 7}


def test_a_constructor_of_six_arguments_is_not_found() -> None:
    assert not too_long(ast.parse("class Six:\n    def __init__(self, a, b, c, *, d, e, f=1) -> None: ...\n"))


@pytest.mark.parametrize("annotation", ["Config", "Config | None"])
def test_a_planted_actor_that_takes_all_settings_is_found(annotation: str) -> None:
    planted = f"class Greedy(Actor):\n    def __init__(self, config: {annotation}) -> None: ...\n"
    assert takes_all_settings(ast.parse(planted)) == {"Greedy"}
    assert not takes_all_settings(ast.parse(planted.replace("(Actor)", "")))
