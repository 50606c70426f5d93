"""Text of a response that arrives token by token: complete and valid at any cut."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import tokenizers_here
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gleaner.actors.gateway.text import (
    HELD_CHARACTERS,
    OVERLAP,
    UNFINISHED,
    WINDOW,
    Detokenizer,
    Reader,
    StopStrings,
)

TOKENIZERS = {name: make() for name, make in tokenizers_here.ALL.items()}
NAMES = sorted(TOKENIZERS)


def special(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def detokenizer(name: str, skip_special: bool = True) -> Detokenizer:
    return Detokenizer(TOKENIZERS[name], special(TOKENIZERS[name]), skip_special)


def cut(tokens: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    at = [0, *sorted(cut % (len(tokens) + 1) for cut in cuts), len(tokens)]
    return [list(tokens[start:end]) for start, end in pairwise(at)]


SOUND = st.text(st.characters(exclude_characters=UNFINISHED, codec="utf-8"), max_size=20)


@given(name=st.sampled_from(NAMES), texts=st.lists(SOUND, max_size=4), skip=st.booleans())
@settings(max_examples=60)
def test_pieces_of_any_text_join_to_the_text(name: str, texts: list[str], skip: bool) -> None:
    """Special tokens are between whole characters, where a model puts them."""
    tokenizer = TOKENIZERS[name]
    between = sorted(special(tokenizer))[-1]
    tokens: list[int] = []
    for text in texts:
        tokens += [*tokenizer.encode(text, add_special_tokens=False).ids, between]
    reader = detokenizer(name, skip)
    pieces = "".join(reader.step(token) for token in tokens)
    assert pieces + reader.flush() == tokenizer.decode(tokens, skip_special_tokens=skip)


@given(tokens=st.lists(st.integers(0, 263), max_size=120))
@settings(max_examples=60)
def test_pieces_of_any_bytes_join_to_the_decoded_text(tokens: list[int]) -> None:
    reader, tokenizer = detokenizer("bytes", skip_special=False), TOKENIZERS["bytes"]
    pieces = "".join(reader.step(token) for token in tokens)
    assert pieces + reader.flush() == tokenizer.decode(tokens, skip_special_tokens=False)


@given(
    name=st.sampled_from(NAMES),
    tokens=st.lists(st.integers(-2, 300), max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    stops=st.lists(st.text("ab hi.", min_size=1, max_size=4), max_size=3),
    keep=st.booleans(),
)
@settings(max_examples=60)
def test_any_cut_gives_the_whole_text(
    name: str, tokens: list[int], cuts: list[int], stops: list[str], keep: bool
) -> None:
    whole, parts = Reader(detokenizer(name), stops, keep), Reader(detokenizer(name), stops, keep)
    once = whole.feed(tokens)
    taken, text, texts = 0, "", []
    for part in cut(tokens, cuts):
        read = parts.feed(part)
        taken, text = taken + read.taken, text + read.text
        texts += read.texts
        if parts.stopped:
            break
    assert (taken, text, tuple(texts)) == (once.taken, once.text, once.texts)
    assert parts.end() == whole.end()


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=6),
    keep=st.booleans(),
)
@settings(max_examples=60)
def test_stop_string_ends_the_text_at_its_first_match(
    text: str, stops: list[str], cuts: list[int], keep: bool
) -> None:
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected, matched = text, None
    if ends:
        longest = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        expected, matched = text[: ends[0] - (0 if keep else len(longest))], longest
    looking, shown, at = StopStrings(stops, keep), "", 0
    for end in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
        shown += looking.feed(text[at:end])
        at = end
        assert expected.startswith(shown), "no text is shown that a stop string would remove"
    assert (shown + looking.flush(), looking.matched) == (expected, matched)


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    least=st.integers(0, 8),
)
@settings(max_examples=60)
def test_stop_string_does_not_end_below_min_tokens(text: str, stops: list[str], least: int) -> None:
    ends = [end for end in range(least + 1, len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    expected = text
    if ends:
        longest = max((stop for stop in stops if text[: ends[0]].endswith(stop)), key=len)
        expected = text[: ends[0] - len(longest)]
    reader = Reader(detokenizer("bytes"), stops, min_tokens=least)
    tokens = [TOKENIZERS["bytes"].token_to_id(letter) for letter in text]
    assert reader.feed(tokens).text + reader.end() == expected


def test_multibyte_character_waits_for_its_last_byte() -> None:
    reader = detokenizer("bytes")
    tokens = TOKENIZERS["bytes"].encode("é€🙂").ids
    assert [reader.step(token) for token in tokens] == ["é", "", "", "€", "", "", "", "🙂"]


def test_byte_character_after_a_byte_blank_is_whole() -> None:
    """A decoder with byte fallback decodes a run of bytes together."""
    tokenizer, reader = TOKENIZERS["blanks"], detokenizer("blanks")
    tokens = tokenizer.encode(" 𐀀").ids
    assert len(tokens) == 5
    assert "".join(reader.step(token) for token in tokens) == tokenizer.decode(tokens) == "𐀀"


def test_leading_blank_after_skipped_tokens_is_kept() -> None:
    tokenizer = TOKENIZERS["blanks"]
    ids = [tokenizer.token_to_id(token) for token in ("▁hi", "<|end|>", "▁hi", "▁", "a")]
    reader = detokenizer("blanks")
    assert [reader.step(id) for id in ids] == ["hi", "", " hi", " ", "a"]


def test_end_shows_the_held_back_text() -> None:
    reader = Reader(detokenizer("bytes"), ["bab"])
    half = TOKENIZERS["bytes"].encode("€").ids[:2]
    read = reader.feed([*TOKENIZERS["bytes"].encode("aab").ids, *half])
    assert read.text == "aa"
    assert reader.end() == "b\N{REPLACEMENT CHARACTER}"


def test_decoding_cost_per_token_is_constant() -> None:
    """Counted, not timed: how many tokens are decoded for each one, in broken bytes and in sound text."""

    class Counting:
        def __init__(self) -> None:
            self.calls = self.tokens = 0

        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            self.calls, self.tokens = self.calls + 1, self.tokens + len(ids)
            return str(TOKENIZERS["bytes"].decode(list(ids), skip_special_tokens))

        def id_to_token(self, id: int) -> str | None:
            token: str | None = TOKENIZERS["bytes"].id_to_token(id)
            return token

    broken = TOKENIZERS["bytes"].token_to_id(sorted(tokenizers_here.pre_tokenizers.ByteLevel.alphabet())[-1])
    for token in (broken, TOKENIZERS["bytes"].token_to_id("a")):
        counting = Counting()
        reader = Detokenizer(counting, frozenset())
        text = "".join(reader.step(token) for _ in range(2000))
        assert len(text) >= 2000 - HELD_CHARACTERS
        assert counting.calls <= 2 * 2000
        assert counting.tokens <= 2000 * (WINDOW + OVERLAP)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_token_ids_add_nothing(name: str) -> None:
    reader = detokenizer(name)
    assert [reader.step(id) for id in (-1, 2**32, 10**6)] == ["", "", ""]
    assert reader.flush() == ""
