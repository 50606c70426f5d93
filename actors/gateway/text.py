"""Detokenizer and StopStrings: text of a growing response, token by token.

Owns what was shown and what is held back. Does not own the tokenizer's files
(`gleaner.actors.reward.prompts`) or the end of the request. Pure. However the tokens are cut into pieces, the
joined text is that of the whole: each token is processed separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.actors.gateway.ask import Decoder

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""A decoder's output for bytes that are no character, and for those of an incomplete one."""

HELD_CHARACTERS = 3
"""Limit of such characters at the end that wait for more: a character of UTF-8 has up to four bytes, so three
may be there without the last one."""

WINDOW = 16
"""Tokens that are decoded together, at most; a run of broken bytes longer than that is cut."""

OVERLAP = 8
"""Tokens that stay after such a cut, more than the bytes of a character."""


class Detokenizer:
    """The text of one response, in pieces.

    A token is decoded after those of the piece before it, because decoders treat the first token of a text
    differently (its leading blank). Each token costs two decodings of at most `WINDOW` tokens, whatever the
    length of the response.
    """

    def __init__(self, decoder: Decoder, special: frozenset[int], skip_special: bool = True) -> None:
        """`special`: tokens that are no text; left out if `skip_special`."""
        self._decoder = decoder
        self._skipped = special if skip_special else frozenset()
        self._window: list[int] = []
        self._context = ""  # text of those tokens of the window that were returned as a whole
        self._new = 0  # tokens of the window after those
        self._shown_chars = 0  # characters of the window's text that were returned

    def step(self, token: int) -> str:
        """The text that this token adds, or completes; any integer is accepted, unknown ones add nothing."""
        if token in self._skipped or not 0 <= token < 2**32 or self._decoder.id_to_token(token) is None:
            return ""
        self._window.append(token)
        self._new += 1
        text = self._text()
        if not text.startswith(self._context):  # some decoders decode adjacent bytes together
            self._window = self._window[-self._new :]
            self._shown_chars, self._context = self._shown_chars - len(self._context), ""
            text = self._text()
        tail = len(text) - len(text.rstrip(UNFINISHED))
        # Up to this many tokens may be one character; some decoders decode it together with the bytes before
        # it.
        held = tail if self._new <= HELD_CHARACTERS else min(tail, HELD_CHARACTERS)
        safe = len(text) - held
        new = text[self._shown_chars : safe]
        self._shown_chars = max(self._shown_chars, safe)
        if held == 0:
            self._window, self._new = self._window[-self._new :], 0
            self._context = self._text()
            self._shown_chars = len(self._context)
        elif len(self._window) > WINDOW:
            self._window, self._new, self._context = self._window[-OVERLAP:], OVERLAP, ""
            self._shown_chars = len(self._text()) - held
        return new

    def flush(self) -> str:
        """The text that was held back: the response has ended in the middle of a character."""
        text = self._text()[self._shown_chars :]
        self._window, self._context, self._new, self._shown_chars = [], "", 0, 0
        return text

    def _text(self) -> str:
        return self._decoder.decode(self._window, skip_special_tokens=False)


class StopStrings:
    """Looks for stop strings in a text that arrives in pieces; holds back a possible start of one."""

    def __init__(self, stops: Sequence[str], keep: bool = False) -> None:
        """`keep`: the stop string itself stays in the text. Empty stop strings are refused by the caller."""
        self._stops = tuple(stops)
        self._keep = keep
        self._held = ""
        self._past = 0  # characters of the held text in which no stop string may end
        self.matched: str | None = None

    def feed(self, text: str, judged: bool = True) -> str:
        """The part of the text that may be shown now. After a match (`matched`): nothing. Not `judged`: no
        stop string ends in this text, though one may start there."""
        if self.matched is not None or not self._stops:
            return "" if self.matched is not None else text
        text = self._held + text
        past = self._past if judged else len(text)
        ends = [
            (at + len(stop), at, stop)
            for stop in self._stops
            if (at := text.find(stop, max(0, past + 1 - len(stop)))) >= 0
        ]
        if ends:
            end, at, self.matched = min(ends)
            self._held = ""
            return text[: end if self._keep else at]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        self._past = max(0, past - (len(text) - held))
        return text[: len(text) - held]

    def flush(self) -> str:
        """The text that was held back, after a response that has ended without a match."""
        text, self._held, self._past = self._held, "", 0
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper prefix of the stop string."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


@dataclass(frozen=True, slots=True)
class Read:
    """The result of reading some tokens. text: to be shown now. taken: tokens up to the end of a stop string;
    all of them if there is none. texts: of each of the taken tokens, for log-probs."""

    text: str
    taken: int
    texts: tuple[str, ...]


class Reader:
    """One response as text with stop strings: tokens in, text out."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        keep_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """min_tokens: the first tokens, this many, do not end in a stop string."""
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops, keep_stop)
        self._free = min_tokens

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.matched

    @property
    def stopped(self) -> bool:
        return self._stops.matched is not None

    def feed(self, tokens: Sequence[int]) -> Read:
        """Read the next tokens. Those after a stop string are ignored."""
        shown: list[str] = []
        texts: list[str] = []
        for token in tokens:
            texts.append(self._detokenizer.step(token))
            shown.append(self._stops.feed(texts[-1], judged=self._free <= 0))
            self._free -= 1
            if self.stopped:
                break
        return Read("".join(shown), len(texts), tuple(texts))

    def end(self) -> str:
        """The rest, after the last token. A stop string that ends in broken bytes counts too."""
        if self.stopped:
            return ""
        shown = self._stops.feed(self._detokenizer.flush())
        return shown + ("" if self.stopped else self._stops.flush())
