"""`python -m gleaner.rlctl.protocol_document [FILE]`: tables of docs/protocol.md.

Owns the form of the generated parts: each is between `<!-- made: NAME -->` and `<!-- end -->` in the page;
the other text is written by hand and kept. The texts are the docstrings of the structs and of their fields;
types, limits and defaults are read from the structs, so the page always agrees with the decoder.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from gleaner.rlctl import struct_table
from gleaner.rlctl.conversations import Conversations, Line, conversations
from gleaner.supervisor.message import Message
from gleaner.supervisor.system_messages import SYSTEM
from gleaner.transport import control_frame, envelope, stream_control

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"
_SLOT = re.compile(r"(<!-- made: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class NoSlot(ValueError):
    """The page has a slot without a generator, or lacks a generated part."""


def updated(text: str) -> str:
    """The page `text` with every slot filled anew. Raises `NoSlot`."""
    made = parts()
    asked = [slot[1] for slot in _SLOT.findall(text)]
    if sorted(asked) != sorted(made):
        raise NoSlot(f"the page has the slots {sorted(asked)}, made are {sorted(made)}")
    return _SLOT.sub(lambda slot: f"{slot[1]}{made[slot[2]]()}\n{slot[3]}", text)


def parts() -> dict[str, Callable[[], str]]:
    """Generators by the name of their slot."""
    talk = conversations()
    return {
        "envelope": lambda: struct_table.array(envelope.Envelope),
        "control link": lambda: _control_link(),
        "stream control": lambda: _stream_control(),
        "overview": lambda: _overview(talk),
        "kinds": lambda: _kinds(talk),
        "answers": lambda: _plain(talk.answers),
        "written": lambda: _plain(talk.written),
        "shapes": lambda: _shapes(talk),
    }


def _control_link() -> str:
    rows = ["| type | message | fields after the type | meaning |", "|---|---|---|---|"]
    for kind, cls in control_frame.TYPES.items():
        own = ", ".join(f"`{name}`" for name in cls.__struct_fields__[4:])
        rows.append(f"| {kind} | {kind.name} | {own} | {struct_table.words(cls)} |")
    return "\n".join(rows)


def _stream_control() -> str:
    rows = ["| message | from | meaning |", "|---|---|---|"]
    for cls in (stream_control.Hello, *stream_control.FromReceiver.__args__):
        speaker, _, meaning = struct_table.words(cls).partition(": ")
        array = ", ".join([f'"{cls.__struct_config__.tag}"', *cls.__struct_fields__])
        rows.append(f"| `[{array}]` | {speaker.lower()} | {meaning} |")
    return "\n".join(rows)


def _overview(talk: Conversations) -> str:
    rows = ["| to | kinds, answered by |", "|---|---|"]
    for to, lines in talk.lines.items():
        name = "every process, as `$system`" if to == SYSTEM else f"`{to}`"
        rows.append(f"| {name} | {', '.join(_answered(line) for line in lines)} |")
    return "\n".join(rows)


def _answered(line: Line) -> str:
    if not line.answer:
        return f"*{line.kind.__name__}*"
    return line.kind.__name__ if line.answer == "Done" else f"{line.kind.__name__} → {line.answer}"


def _kinds(talk: Conversations) -> str:
    blocks = []
    for to, lines in talk.lines.items():
        blocks.append(f"#### To `{to}`")
        for line in lines:
            facts = [f"from {', '.join(f'`{it}`' for it in line.senders)}"] if line.senders else []
            facts.append(f"answered by {line.answer}" if line.answer else "one-way")
            facts.append(f"{line.lane.name.lower()} lane")
            blocks.append(f"**{line.kind.__name__}** ({'; '.join(facts)}). {struct_table.words(line.kind)}")
            blocks.extend(struct_table.map_(line.kind))
    for name, kinds in talk.private.items():
        blocks.append(f"`{name}` also sends itself {', '.join(f'`{kind}`' for kind in kinds)}.")
    return "\n\n".join(blocks)


def _plain(classes: Iterable[type]) -> str:
    blocks = []
    for cls in sorted(classes, key=lambda cls: (cls.__name__, cls.__module__)):
        blocks.append(f"**{cls.__name__}**. {struct_table.words(cls)}")
        blocks.extend(struct_table.map_(cls))
    return "\n\n".join(blocks)


def _shapes(talk: Conversations) -> str:
    kinds = [line.kind for lines in talk.lines.values() for line in lines]
    found: dict[type, None] = {}
    for cls in (*kinds, *talk.answers, *talk.written):
        found.update(dict.fromkeys(struct_table.inside(cls)))
    return _plain(cls for cls in found if not issubclass(cls, Message))


def main(arguments: list[str]) -> int:
    """Rewrite the page in place."""
    page = Path(arguments[0]) if arguments else PAGE
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
