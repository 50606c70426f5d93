"""Source files of a user's function: its module and the imports beside it.

They are found by reading the source, never by running it. Only these become readable in the sandbox, so other
files in their folder (keys, data, other jobs) stay out of reach.
"""

import ast
import importlib.machinery
import importlib.util
from collections.abc import Iterator
from pathlib import Path

MAX_FILES = 2000
"""Source files that are looked at; beyond it the folder is no place for a reward function."""


class TooManySources(ValueError):
    """The module's packages have more files than any reward function needs."""


def sources(module: str, folder: str) -> list[str]:
    """Files and package folders to read for `module`, "a.b.c": those in `folder`, else those of the installed
    package. Raises TooManySources."""
    found: dict[str, None] = {}
    first = module.partition(".")[0]
    left = [first]
    seen: set[str] = set()
    looked = 0
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        place = _place(name, Path(folder), bare=name == first) if folder else None
        if place is None:
            continue
        found[str(place)] = None
        for file in place.rglob("*.py") if place.is_dir() else [place]:
            looked += 1
            if looked > MAX_FILES:
                raise TooManySources(f"{place}: more than {MAX_FILES} source files; move the function out")
            left.extend(_imported(file))
    return list(found) or _installed(first)


def _place(name: str, folder: Path, *, bare: bool) -> Path | None:
    """The file or folder that `import name` finds in a folder. bare: packages without __init__.py too."""
    if (folder / name / "__init__.py").is_file():
        return folder / name
    for suffix in importlib.machinery.all_suffixes():
        if (file := folder / f"{name}{suffix}").is_file():
            return file
    return folder / name if bare and (folder / name).is_dir() else None


def _imported(file: Path) -> Iterator[str]:
    """Top names of the modules that a file imports anywhere in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # its import reports the error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _installed(name: str) -> list[str]:
    """The place of a package that is installed in place, outside of site-packages."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    places = list(spec.submodule_search_locations or []) or ([spec.origin] if spec.origin else [])
    return [place for place in places if Path(place).exists()]
