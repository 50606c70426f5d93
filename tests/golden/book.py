"""The golden files: the bytes of every message and frame, and their meaning.

Owns their text. There is one file for each module of messages, and one for the frames of `transport/`. An
entry is a name, the meaning as JSON (raw bytes in base64) and each part in hexadecimal.
"""

import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from gleaner.chaos.examples import example
from gleaner.rlctl import vocabulary
from gleaner.supervisor.message import Message, encode_body
from tests.golden import frames

HERE = Path(__file__).parent
FRAMES = "transport"
HEADER = """\
# Golden bytes of {module}. Made by `python -m tests.golden`, which adds and removes entries. It changes one
# only when it is told to (CONTRIBUTING.md): other releases and journals on disk hold the old bytes.
"""


class Entry(NamedTuple):
    """The entry of one kind."""

    meaning: str
    parts: tuple[bytes, ...]


Pages = dict[str, dict[str, Entry]]
"""Entry by name, by module."""


def current() -> Pages:
    """The entries that this tree's code makes."""
    pages: Pages = {}
    for kind, cls in vocabulary.kinds().items():
        pages.setdefault(cls.__module__.removeprefix("gleaner."), {})[kind] = _message(example(cls))
    pages[FRAMES] = {case.name: Entry(_json(case.meaning), tuple(case.parts)) for case in frames.cases()}
    return pages


def written() -> Pages:
    """The entries in the files."""
    return {path.stem: _read(path) for path in sorted(HERE.glob("*.txt"))}


def write(pages: Pages) -> None:
    """Replace the files."""
    for path in HERE.glob("*.txt"):
        if path.stem not in pages:
            path.unlink()
    for module, entries in pages.items():
        blocks = [HEADER.format(module=module)]
        for name, entry in entries.items():
            blocks.append(
                "\n".join([name, f"  {entry.meaning}", *(f"  {it.hex()}" for it in entry.parts)]) + "\n"
            )
        (HERE / f"{module}.txt").write_text("\n".join(blocks))


def _read(path: Path) -> dict[str, Entry]:
    entries = {}
    for block in path.read_text().split("\n\n")[1:]:
        name, meaning, *parts = (line.strip() for line in block.strip().splitlines())
        entries[name] = Entry(meaning, tuple(bytes.fromhex(part) for part in parts))
    return entries


def _message(message: Message) -> Entry:
    return Entry(_json(message), (encode_body(message),))


def _json(value: object) -> str:
    return json.dumps(json.loads(msgspec.json.encode(value)), separators=(", ", ": "))
