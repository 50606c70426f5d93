"""A tokenizer for tests, in a folder as a checkpoint has it."""

from pathlib import Path

from gleaner.actors.reward.prompts import Prompts
from gleaner.actors.training.new_tokenizer import CHAT_TEMPLATE, new_tokenizer


def checkpoint(folder: Path) -> Path:
    """The folder, with a tokenizer and a chat template added if missing."""
    if not (folder / "tokenizer.json").exists():
        words = ["What is 1 + 2 ?", "problem a b train heldout"]
        new_tokenizer(words, []).save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


def prompts(folder: Path) -> Prompts:
    """Prompts of that folder."""
    return Prompts(checkpoint(folder))
