"""Process `python -m gleaner.rlctl.model_process ...` that makes or checks a model.

It makes a model with torch, and checks one without. Owns only the translation from its arguments to lines of
JSON on standard output (`gleaner.rlctl.models`). People use `rlctl model`.
"""

from gleaner.supervisor.process import die_with_parent

if __name__ == "__main__":
    die_with_parent()  # before the imports below: they take seconds

import argparse
import math
import sys
from pathlib import Path

import msgspec

from gleaner.actors.model import checkpoint_files
from gleaner.actors.model.qwen3_config import BadCheckpoint, Qwen3Config
from gleaner.actors.reward.prompts import BadTokenizer
from gleaner.actors.reward.source import BadTask
from gleaner.actors.reward.task import mixed_source, tasks_of
from gleaner.configs.load import ConfigError, load
from gleaner.configs.schema import Config
from gleaner.rlctl.models import MadeModel, ProcessLine, Progress, Unusable

TRIED_PROBLEMS = 64
"""Problems whose prompts are checked against the engine's limit before a run begins; a later one that does
not fit is refused there."""
REPORT_EVERY = 5
FLOAT32_BYTES = 4
"""Bytes of a parameter: the trainer holds its weights in this type."""


def say(line: ProcessLine) -> None:
    """One line for the process that started this one."""
    sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def make(out_dir: Path, config: Config) -> None:
    """Make the model of the settings. Raises BadTask, OSError."""
    import torch

    from gleaner.actors.training.new_model import WarmStartProgress, new_model

    torch.set_num_threads(1)  # the same seed gives the same bits whatever the host; two threads gain little

    def report(at: WarmStartProgress) -> None:
        if at.step % REPORT_EVERY == 0 or at.step == at.steps:
            say(Progress(step=at.step, steps=at.steps, loss=at.loss))

    new_model(out_dir, config.model, mixed_source(config), config.job.seed, report)


def describe(directory: Path, example: str = "") -> MadeModel:
    """Check a checkpoint and count it. Raises BadCheckpoint."""
    shape = checkpoint_files.check(directory)
    parameters = sum(map(math.prod, checkpoint_files.layout(shape).values()))
    return MadeModel(
        path=str(directory),
        parameters=parameters,
        layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        heads=shape.num_attention_heads,
        kv_heads=shape.num_key_value_heads,
        vocabulary=shape.vocab_size,
        longest=shape.max_position_embeddings,
        bytes=FLOAT32_BYTES * parameters,
        example=example,
    )


def fit(directory: Path, config: Config) -> str:
    """Render some problems with the model's tokenizer; return an example.

    Raises BadTask, BadTokenizer, and BadCheckpoint where prompts or responses do not fit the model.
    """
    task = tasks_of(config, directory)
    shape = Qwen3Config.load(directory)
    tried = [task.problem("train", index) for index in range(min(TRIED_PROBLEMS, config.train_problems))]
    highest = max((token for problem in tried for token in problem.prompt_tokens), default=0)
    if highest >= shape.vocab_size:
        raise BadCheckpoint(
            f"{directory}: tokenizer.json makes token {highest}, config.json lists {shape.vocab_size} "
            "(vocab_size): the two belong to different models"
        )
    widest = max(range(len(tried)), key=lambda index: len(tried[index].prompt_tokens))
    longest = len(tried[widest].prompt_tokens)
    if longest > config.engine.max_prompt_tokens:
        raise BadCheckpoint(
            f"a prompt of {task.name_of('train', widest)} has {longest} tokens, engine.max_prompt_tokens is "
            f"{config.engine.max_prompt_tokens}: raise it"
        )
    if longest + config.rollout.max_new_tokens > shape.max_position_embeddings:
        raise BadCheckpoint(
            f"{directory}: it reads {shape.max_position_embeddings} tokens, prompts have up to {longest} "
            f"and rollout.max_new_tokens is {config.rollout.max_new_tokens}: lower that"
        )
    return tried[0].question


def main(argv: list[str] | None = None) -> int:
    """Entry point; failures that a user can fix become a line of JSON."""
    parser = argparse.ArgumentParser(prog="gleaner.rlctl.model_process")
    parser.add_argument("what", choices=["new", "check", "show"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--config", type=Path)
    args = parser.parse_args(argv)
    try:
        config = load(args.config) if args.config else Config()
        if args.what == "new":
            make(args.directory, config)
        example = fit(args.directory, config) if args.what != "show" else ""
        say(describe(args.directory, example))
    except (BadCheckpoint, BadTask, BadTokenizer, ConfigError, FileExistsError) as problem:
        say(Unusable(text=str(problem)))
    except OSError as problem:
        say(Unusable(text=f"{args.directory}: {problem}: is the disk full or not writable?"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
