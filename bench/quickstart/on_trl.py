"""The same job by TRL's GRPOTrainer, in an environment of its own.

Usage: `python on_trl.py SETTINGS`. SETTINGS is a JSON object: model, problems (a folder with train.jsonl and
heldout.jsonl), task, params, steps, prompts, samples, max_new_tokens, learning_rate, betas, seed, threads,
out (a folder) and stepped (a file that is made when the first step is over). The output is one line of JSON:
the seconds of each step and the held-out rewards. Nothing of Gleaner is imported here.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from reasoning_gym.factory import create_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Clock(TrainerCallback):  # type: ignore[misc]  # TRL is not in this environment
    """Times at which the steps ended; the first one starts with training."""

    def __init__(self, stepped: str) -> None:
        self.marks_s: list[float] = []
        self._stepped = Path(stepped)

    def on_train_begin(self, *state: Any, **others: Any) -> None:
        self.marks_s = [time.monotonic()]

    def on_step_end(self, *state: Any, **others: Any) -> None:
        self.marks_s.append(time.monotonic())
        self._stepped.touch()


def rows(folder: str, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / name).read_text(encoding="utf-8").splitlines()]


def heldout_reward(
    model: Any,
    tokenizer: Any,
    problems: list[dict[str, Any]],
    limit: int,
    score: Callable[[str, dict[str, Any]], float],
) -> float:
    """Mean reward of one sampled answer a problem, in one batch."""
    model.eval()
    tokenizer.padding_side = "left"
    texts = [row["prompt"] for row in problems]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        made = model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=limit
        )
    answers = tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    scores = [score(answer, row["entry"]) for answer, row in zip(answers, problems, strict=True)]
    return sum(scores) / len(problems)


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    dataset = create_dataset(settings["task"], seed=0, size=1, **settings["params"])

    def score(response: str, entry: dict[str, Any]) -> float:
        found = ANSWER.findall(response)
        answer = found[-1].strip() if found else response.strip()
        return float(min(max(dataset.score_answer(answer, entry), 0.0), 1.0))

    def reward(completions: list[str], entry: list[str], **others: Any) -> list[float]:
        return [score(answer, json.loads(one)) for answer, one in zip(completions, entry, strict=True)]

    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    heldout = rows(settings["problems"], "heldout.jsonl")
    first = heldout_reward(model, tokenizer, heldout, settings["max_new_tokens"], score)
    train = [
        {"prompt": row["prompt"], "entry": json.dumps(row["entry"])}
        for row in rows(settings["problems"], "train.jsonl")
    ]
    clock = Clock(settings["stepped"])
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(train),
        callbacks=[clock],
        args=GRPOConfig(
            output_dir=settings["out"],
            use_cpu=True,
            bf16=False,
            seed=settings["seed"],
            max_steps=settings["steps"],
            per_device_train_batch_size=settings["prompts"] * settings["samples"],
            num_generations=settings["samples"],
            gradient_accumulation_steps=1,
            max_completion_length=settings["max_new_tokens"],
            learning_rate=settings["learning_rate"],
            lr_scheduler_type="constant",
            adam_beta1=settings["betas"][0],
            adam_beta2=settings["betas"][1],
            max_grad_norm=1.0,
            beta=0.0,
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type="dapo",
            temperature=1.0,
            gradient_checkpointing=False,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
        ),
    )
    trainer.train()
    last = heldout_reward(trainer.model, tokenizer, heldout, settings["max_new_tokens"], score)
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    steps_s = [after - before for before, after in pairwise(clock.marks_s)]
    found = {"steps_s": steps_s, "first": first, "last": last, "rewards": rewards}
    sys.stdout.write("RESULT " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
