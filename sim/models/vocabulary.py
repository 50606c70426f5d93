"""SimVocabulary: a modelled tokenizer, in which each token is a word.

Token 300 is " 12c", its number in hexadecimal digits behind a blank. So a text can be compared with its
tokens, and short words occur often enough to be stop strings. Pure.
"""

from collections.abc import Mapping, Sequence

WORDS = 2**32
"""Tokens from here on do not exist."""


def word(token: int) -> str:
    """The text of a token."""
    return f" {token:x}"


class SimDecoder:
    """`gleaner.actors.gateway.ask.Decoder`."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens; none of them is special."""
        return "".join(map(word, ids))

    def id_to_token(self, id: int) -> str | None:
        """The text of one token."""
        return word(id) if 0 <= id < WORDS else None

    def token_to_id(self, token: str) -> int | None:
        """The token of a word; None for a text that is none."""
        try:
            return int(token, 16)
        except ValueError:
            return None


class SimVocabulary:
    """`gleaner.actors.gateway.ask.Vocabulary`. A text is words; one that is no number is its own length."""

    def __init__(self) -> None:
        self._decoder = SimDecoder()

    @property
    def tokenizer(self) -> SimDecoder:
        """See `Vocabulary`."""
        return self._decoder

    @property
    def special(self) -> frozenset[int]:
        """See `Vocabulary`."""
        return frozenset()

    @property
    def template(self) -> str:
        """See `Vocabulary`."""
        return "{{ content }}"

    def encode_text(self, text: str, special: bool = False) -> list[int]:
        """See `Vocabulary`."""
        known = self._decoder.token_to_id
        return [len(part) if (token := known(part)) is None else token for part in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Vocabulary`."""
        return self._decoder.decode(tokens)

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        generation_prompt: bool = True,
        names: Mapping[str, object] | None = None,
    ) -> str:
        """See `Vocabulary`: the turns, one behind the other."""
        return " ".join(str(message.get("content", "")) for message in messages)
