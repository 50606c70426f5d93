"""Tiny tokenizer of a made model: characters, and the words of every question.

Owns the vocabulary and the chat template of made models. Existing checkpoints bring their own. Pure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

PAD, UNKNOWN, USER, ASSISTANT, END = "<|pad|>", "<|unknown|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (PAD, UNKNOWN, USER, ASSISTANT, END)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""Tokens, but no special ones (as in Qwen3): they stay in the decoded text, which the verifier reads."""

SHORTEST_WORD = 3
"""Characters of the shortest shared word, its blank included, that is worth a token of its own."""

CHAT_TEMPLATE = (
    "{% if tools %}<|user|>Tools:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Call one by <tool_call>{"name": "...", "arguments": {}}</tool_call>\n{% endif %}'
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<|user|>{{ message.content }}"
    "{% elif message.role == 'tool' %}<|user|><tool_response>{{ message.content }}</tool_response>"
    "{% else %}<|assistant|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def new_tokenizer(questions: Sequence[str], answers: Sequence[str]) -> Tokenizer:
    """A tokenizer for these questions and answers, and for any printable ASCII.

    Words that are in all questions become tokens, so that a prompt is mostly what differs; everything else is
    spelled. Other characters become `<|unknown|>`. Decoding gives the text back.
    """
    characters = set(string.printable[:95] + "\n").union(*questions, *answers)
    vocabulary = {token: id for id, token in enumerate([*SPECIAL, *sorted(characters)])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    words = [AddedToken(word, normalized=False) for word in (*TAGS, *_shared_words(questions))]
    tokenizer.add_tokens(words)
    return tokenizer


def _shared_words(questions: Sequence[str]) -> list[str]:
    """Words of all questions with the blank before them, in the order of the first question."""
    spoken = [re.findall(r"\s?\S+", question) for question in questions]
    if not spoken:
        return []
    shared = set(spoken[0]).intersection(*spoken)
    return [word for word in dict.fromkeys(spoken[0]) if word in shared and len(word) >= SHORTEST_WORD]
