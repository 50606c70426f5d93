"""Fill-in-the-middle completions between a prompt and a suffix.

Owns the special tokens of the families. Pure.
"""

from dataclasses import dataclass

from gleaner.actors.gateway.ask import BadAsk, Vocabulary


@dataclass(frozen=True, slots=True)
class Middle:
    """Special tokens: before the prompt, before the suffix, before the tokens to make."""

    prefix: str
    suffix: str
    middle: str


FAMILIES = (
    Middle("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 and later, CodeGemma
    Middle("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder, Granite
    Middle("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)


def between(words: Vocabulary, prompt: str | list[int], suffix: str) -> list[int]:
    """The tokens of a prompt for the text between these two. Raises BadAsk for a model without such
    tokens."""
    begin = words.encode_text(prompt) if isinstance(prompt, str) else prompt
    for family in FAMILIES:
        ids = [words.tokenizer.token_to_id(name) for name in (family.prefix, family.suffix, family.middle)]
        before, behind, middle = ids
        if before is not None and behind is not None and middle is not None:
            return [
                before, *begin, behind, *words.encode_text(suffix), middle
            ]  # fmt: skip
    raise BadAsk("this model has no tokens for filling in the middle (<|fim_prefix|> and its kin)", "suffix")
