"""Problems of the job as files for other programs: a prompt and an entry a line.

Owns the two files. Prompts use the model's chat template, as in the job.
"""

import json
from pathlib import Path

from gleaner.actors.reward.entries import Entry
from gleaner.actors.reward.prompts import Prompts
from gleaner.actors.reward.source import Split
from gleaner.actors.reward.task import mixed_source
from gleaner.configs.schema import Config

TRAIN, HELDOUT = "train.jsonl", "heldout.jsonl"


def write(config: Config, model: Path, folder: Path) -> None:
    """Write as many training problems as the job's steps draw, and the held-out ones. Raises BadTask."""
    counts: list[tuple[str, Split, int]] = [
        (TRAIN, "train", config.job.steps * config.rollout.prompts),
        (HELDOUT, "heldout", config.heldout_problems),
    ]
    source, prompts = mixed_source(config), Prompts(model)
    for name, split, count in counts:
        with (folder / name).open("w", encoding="utf-8") as file:
            for index in range(count):
                entry = source.entry(split, index)
                json.dump({"prompt": _worded(prompts, entry), "entry": entry.info}, file, default=str)
                file.write("\n")


def _worded(prompts: Prompts, entry: Entry) -> str:
    if prompts.template:
        return prompts.chat([{"role": "user", "content": entry.question}])
    return entry.question
