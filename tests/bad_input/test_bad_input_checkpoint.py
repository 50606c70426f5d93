"""Damaged checkpoint directories: the error names the file and the remedy, and no run starts."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_command import CONFIG, Rlctl, command
from torch import Tensor

from gleaner.rlctl import model_process
from gleaner.rlctl.errors import USAGE

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], object]


def without(name: str) -> Damage:
    return lambda directory: (directory / name).unlink()


def cut(name: str, size: int) -> Damage:
    return lambda directory: os.truncate(directory / name, size)


def holding(name: str, data: bytes) -> Damage:
    return lambda directory: (directory / name).write_bytes(data)


def set_to(key: str, value: object) -> Damage:
    def damage(directory: Path) -> None:
        file = directory / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))

    return damage


def weights(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    def damage(directory: Path) -> None:
        state = load_file(directory / WEIGHTS)
        change(state)
        save_file(state, directory / WEIGHTS)

    return damage


def shards(index: bytes) -> Damage:
    def damage(directory: Path) -> None:
        (directory / WEIGHTS).unlink()
        (directory / INDEX).write_bytes(index)

    return damage


NORM = "model.norm.weight"
NAN = torch.full([16], float("nan"))

DAMAGES: list[tuple[Damage, str]] = [
    (without("config.json"), "config.json is missing: give a Hugging Face checkpoint directory"),
    (cut("config.json", 20), "config.json cannot be read as JSON"),
    (holding("config.json", b"\xff\xfe\x00\x01"), "config.json cannot be read as JSON"),
    (holding("config.json", b"[" * 200_000), "config.json cannot be read as JSON"),
    (holding("config.json", b"[]"), "config.json holds a list, expected a JSON object"),
    (set_to("hidden_size", "16"), "config.json: hidden_size: expected int, got '16'"),
    (set_to("hidden_size", 10**30), "config.json: hidden_size: expected a number from 1 to"),
    (set_to("num_hidden_layers", 10**7), "config.json: num_hidden_layers: expected a number from 1 to"),
    (set_to("hidden_size", 32), "the two belong to different models"),
    (set_to("model_type", "llama"), "'llama' is not supported"),
    (without(WEIGHTS), f"has neither {WEIGHTS} nor {INDEX}: copy the checkpoint again"),
    (cut(WEIGHTS, 3000), f"{WEIGHTS} is truncated or damaged"),
    (cut(WEIGHTS, 0), f"{WEIGHTS} is truncated or damaged"),
    (holding(WEIGHTS, bytes(range(256)) * 20), f"{WEIGHTS} is truncated or damaged"),
    (holding(WEIGHTS, struct.pack("<Q", 1 << 60) + b"{}"), f"{WEIGHTS} is truncated or damaged"),
    (weights(lambda state: state.pop(NORM)), f"1 tensors are in no file, the first is {NORM!r}"),
    (weights(lambda state: state.update(strange=NAN)), "holds 'strange', which a model of this config.json"),
    (weights(lambda state: state.update({NORM: NAN})), f"{NORM!r} holds NaN or infinity"),
    (weights(lambda state: state.update({NORM: state[NORM].int()})), "expected floating-point numbers"),
    (shards(b"{}"), f"{INDEX} is no index of shards"),
    (shards(b'{"weight_map": {"a": "../a"}}'), "is outside of the directory"),
    (shards(b'{"weight_map": {"a": "gone.safetensors"}}'), "gone.safetensors is missing"),
    (without("tokenizer.json"), "tokenizer.json cannot be read"),
    (cut("tokenizer.json", 100), "tokenizer.json is no tokenizer"),
    (holding("tokenizer.json", b"\xff\xfe"), "tokenizer.json is no tokenizer"),
    (holding("tokenizer_config.json", b"[1]"), "tokenizer_config.json holds a list, expected a JSON object"),
    (holding("tokenizer_config.json", b"{"), "tokenizer_config.json cannot be read as JSON"),
    (holding("chat_template.jinja", b"\xff\xfe"), "chat_template.jinja cannot be read"),
    (holding("chat_template.jinja", b"{% for %}"), "the chat template is broken"),
    (holding("chat_template.jinja", b"{{ 1 / 0 }}"), "the chat template fails on a question"),
]


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "damaged"))


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=[words for _damage, words in DAMAGES])
def test_damaged_checkpoint_is_refused_with_file_and_remedy(
    damaged: Path, damage: Damage, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(damaged)
    assert model_process.main(["check", str(damaged), "--config", str(CONFIG)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kind"] == "unusable"
    assert words in answer["text"]
    assert str(damaged) in answer["text"]


def test_undamaged_checkpoint_is_accepted(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_process.main(["check", str(damaged), "--config", str(CONFIG)])
    assert json.loads(capsys.readouterr().out)["kind"] == "made"


def test_tokenizer_of_another_model_is_found_early(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = "model.embed_tokens.weight"
    weights(lambda state: state.update({table: state[table][:10].clone()}))(damaged)
    set_to("vocab_size", 10)(damaged)
    model_process.main(["check", str(damaged), "--config", str(CONFIG)])
    text = json.loads(capsys.readouterr().out)["text"]
    assert "config.json lists 10 (vocab_size)" in text


def test_run_does_not_start_with_a_truncated_checkpoint(refused: Rlctl, damaged: Path) -> None:
    os.truncate(damaged / WEIGHTS, 3000)
    code, printed = refused(str(CONFIG), "--set", f"model.path={damaged}")
    assert code == USAGE
    assert f"{damaged / WEIGHTS} is truncated or damaged" in printed


def test_model_show_names_missing_files(damaged: Path) -> None:
    (damaged / WEIGHTS).unlink()
    ended = command("rlctl", "model", "show", str(damaged))
    assert (ended.returncode, ended.stdout) == (USAGE, "")
    assert ended.stderr.startswith(f"error: {damaged} has neither {WEIGHTS} nor {INDEX}")
