"""Sections of docs/benchmarks.md that single benches write.

Each is between two marks, after the page that bench.runtime writes. Owns the marks. Each writer replaces its
own section and keeps the others.
"""

import re
from pathlib import Path

_SECTION = re.compile(r"<!-- (?P<name>[a-z ]+): begin -->\n.*?<!-- (?P=name): end -->\n", re.DOTALL)


def put(file: Path, name: str, text: str) -> None:
    """Replace the section `name` of the page, or add it at the end."""
    section = f"<!-- {name}: begin -->\n{text.strip()}\n<!-- {name}: end -->\n"
    page = file.read_text() if file.exists() else ""
    found = {match["name"]: match for match in _SECTION.finditer(page)}
    if name in found:
        page = page[: found[name].start()] + section + page[found[name].end() :]
    else:
        page = f"{page}\n{section}"
    file.write_text(page)


def kept(file: Path) -> str:
    """All sections of the present page, "" where there are none."""
    if not file.exists():
        return ""
    return "".join(f"\n{match[0]}" for match in _SECTION.finditer(file.read_text()))
