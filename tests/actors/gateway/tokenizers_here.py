"""Small tokenizers of the three common kinds: bytes (Qwen, Llama 3), blanks as U+2581 with byte fallback
(Llama 2, Gemma), and whole characters (the models of Gleaner)."""

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from gleaner.actors.training.new_tokenizer import new_tokenizer

SPECIAL = ["<|start|>", "<|end|>"]


def of_bytes() -> Tokenizer:
    """Every token is one byte, except some words and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "h"), ("Ġh", "i"), ("a", "b"), ("Ã", "©")]
    vocabulary = {token: id for id, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def of_blanks() -> Tokenizer:
    """As from SentencePiece: a blank leads each word, and text without a token is spelled in bytes."""
    words = ["▁", "▁a", "▁hi", "a", "b", "h", "i", ".", "\n", "é", "▁▁"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: id for id, token in enumerate(["<unk>", *bytes_, *words])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    replace, fallback = decoders.Replace("▁", " "), decoders.ByteFallback()
    tokenizer.decoder = decoders.Sequence([replace, fallback, decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def of_characters() -> Tokenizer:
    return new_tokenizer(["Spell this word: house"], ["esuoh"])


ALL = {"bytes": of_bytes, "blanks": of_blanks, "characters": of_characters}
