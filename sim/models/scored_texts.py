"""Texts of simulated responses: how a job's worker gives a response to a reward service, and what that reads.

A simulated response has no words: its text is its tokens as decimal numbers, and the answer of its problem is
the problem's place. Both ends of the service use this module. Pure.
"""

import msgspec

from gleaner.actors.reward import pipe
from gleaner.actors.reward.entries import Entry


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a problem."""

    split: str
    index: int


class NotSimulated(ValueError):
    """A text that no simulated worker made."""


def text_of(task: str, item: pipe.ReadItem) -> pipe.TextItem:
    """The text of a response with its problem."""
    entry = Entry(question="?", answer={"split": item.split, "index": item.index})
    return pipe.TextItem(task, msgspec.json.encode(entry), " ".join(map(str, item.tokens)))


def response_of(item: pipe.TextItem) -> pipe.ScoreItem:
    """The response of a text. Raises NotSimulated."""
    try:
        entry = msgspec.json.decode(item.entry, type=Entry)
        place = msgspec.convert(entry.answer, _Place)
        tokens = [int(word) for word in item.response.split()]
    except (msgspec.MsgspecError, ValueError) as problem:
        raise NotSimulated(str(problem)) from None
    return pipe.ScoreItem(place.split, place.index, tokens)
